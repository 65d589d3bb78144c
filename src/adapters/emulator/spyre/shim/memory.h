// Device memory of the emulated Spyre card, and what a tensor of it looks like to the CPU.
//
// A float16 or bfloat16 element is held as a float32 at the same element index: the kernels compute on floats without
// a conversion, and whether a result is rounded to the 16-bit type is a switch, not a second code path.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>

namespace stepshape {

constexpr c10::DeviceType kSpyre = c10::DeviceType::PrivateUse1;
constexpr size_t kAlignment = 128;  // bytes: one stick

// What the bytes of a block are. RAW: nothing has been read or written by type yet (bytes of a storage copied whole).
enum class Content : uint8_t { RAW, PLAIN, HALF, BFLOAT16 };

// One allocation. `nominal` is the size that torch knows and that a real card would use.
struct Block {
  void* base;
  size_t nominal;
  size_t capacity;
  Content content;
  c10::DeviceIndex device;
};

inline bool is_wide(c10::ScalarType type) {
  return type == c10::kHalf || type == c10::kBFloat16;
}
// The type a device tensor of `type` has while the CPU computes with it.
inline c10::ScalarType compute_type(c10::ScalarType type) {
  return is_wide(type) ? c10::kFloat : type;
}

c10::DeviceAllocator* device_allocator();

// The next allocation of this thread is for elements of `type`; without it memory comes as RAW.
// `fill` false: and is not filled, because it is written at once.
struct ContentScope {
  explicit ContentScope(c10::ScalarType type, bool fill = true);
  ~ContentScope();
};

// The block under a device tensor's storage; nullptr for an empty storage.
Block* block_of(const c10::Storage& storage);
// Gives `storage` room for `bytes`, keeping what it holds. Throws if the storage is not a device storage.
void resize_storage(const c10::Storage& storage, size_t bytes);
// Copies a whole storage, seen as bytes, between device and device or device and host.
void copy_bytes(const at::Tensor& from, const at::Tensor& to);

// A CPU storage over the same memory, prepared for elements of `type` (see Content).
c10::Storage cpu_storage(const c10::Storage& storage, c10::ScalarType type);
// A CPU tensor over the same memory: sizes, strides and offset of `tensor`, its compute_type.
at::Tensor cpu_alias(const at::Tensor& tensor);

// Rounds the floats of `alias` to `type` in place.
void round_alias(const at::Tensor& alias, c10::ScalarType type);
// Copies floats, each rounded to `type`; `to` may be `from`.
void copy_rounded(const float* from, float* to, int64_t count, c10::ScalarType type);

// Fresh memory is filled with this byte; negative: left as it comes.
void set_fill(int byte);
int fill();
// Off: float16 and bfloat16 results keep float32 precision.
void set_rounding(bool on);
bool rounding();

void set_total_bytes(size_t bytes);

}  // namespace stepshape
