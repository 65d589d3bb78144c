// Allocation, poison, rounding and aliasing. See memory.h.
#include "memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stepshape {
namespace {

std::atomic<int> g_fill{0xff};
std::atomic<bool> g_rounding{true};
std::atomic<size_t> g_total{size_t(16) << 30};
thread_local Content t_content = Content::RAW;
thread_local bool t_fill = true;

Content content_of(c10::ScalarType type) {
  if (type == c10::kHalf) return Content::HALF;
  if (type == c10::kBFloat16) return Content::BFLOAT16;
  return Content::PLAIN;
}
bool is_wide(Content content) {
  return content == Content::HALF || content == Content::BFLOAT16;
}

std::mutex g_stats_mutex;
c10::CachingDeviceAllocator::DeviceStats g_stats[64];

void count(c10::DeviceIndex device, size_t bytes, bool allocated) {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  std::lock_guard<std::mutex> lock(g_stats_mutex);
  auto& stats = g_stats[device];
  for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
    allocated ? (*stat)[all].increase(bytes) : (*stat)[all].decrease(bytes);
  }
  for (auto* stat : {&stats.allocation, &stats.active}) {
    allocated ? (*stat)[all].increase(1) : (*stat)[all].decrease(1);
  }
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  std::free(block->base);
  count(block->device, block->nominal, false);
  delete block;
}

struct SpyreAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return take(bytes, c10::impl::VirtualGuardImpl(kSpyre).getDevice().index(), t_content);
  }
  c10::DataPtr take(size_t bytes, c10::DeviceIndex index, Content content) {
    const c10::Device device(kSpyre, index);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    size_t capacity = content == Content::PLAIN ? bytes : 2 * bytes;
    capacity = (capacity + kAlignment - 1) / kAlignment * kAlignment;
    void* base = std::aligned_alloc(kAlignment, capacity);
    TORCH_CHECK_WITH(
        OutOfMemoryError, base != nullptr, "the emulated Spyre card has no ", bytes, " bytes left; use a smaller model");
    if (const int byte = g_fill; byte >= 0 && t_fill) std::memset(base, byte, capacity);
    auto* block = new Block{base, bytes, capacity, content, index};
    count(index, bytes, true);
    return {base, block, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;  // a block's context is not its data pointer
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(g_stats_mutex);
    return g_stats[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    std::lock_guard<std::mutex> lock(g_stats_mutex);
    const size_t used = g_stats[device].allocated_bytes[all].current;
    const size_t total = g_total;
    return {used < total ? total - used : 0, total};
  }

 private:
  template <typename F>
  void reset(c10::DeviceIndex device, F one) {
    std::lock_guard<std::mutex> lock(g_stats_mutex);
    auto& stats = g_stats[device];
    for (auto* array :
         {&stats.allocation, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
          &stats.requested_bytes}) {
      for (auto& stat : *array) one(stat);
    }
  }
};

// "Pinned" memory is ordinary memory. Without this torch.accelerator.empty_host_cache() crashes at shutdown.
struct SpyreHostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &c10::free_cpu;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

// Never destroyed: storages may outlive every static of this library.
SpyreAllocator* the_allocator() {
  static auto* allocator = new SpyreAllocator();
  return allocator;
}

const bool g_registered = [] {
  c10::SetAllocator(kSpyre, the_allocator());
  at::setHostAllocator(kSpyre, new SpyreHostAllocator());
  return true;
}();

// Every 16-bit float is a float: exact. Done from the end, in place.
void widen(Block* block, Content content) {
  auto* bytes = static_cast<char*>(block->base);
  for (size_t i = block->nominal / 2; i-- > 0;) {
    uint16_t bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    const float value = content == Content::HALF
        ? static_cast<float>(c10::Half(bits, c10::Half::from_bits()))
        : static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
    std::memcpy(bytes + i * sizeof value, &value, sizeof value);
  }
}

void prepare(Block* block, c10::ScalarType type) {
  if (block == nullptr) return;
  const Content wanted = content_of(type);
  if (block->content == wanted) return;
  if (block->content == Content::RAW) {
    if (type == c10::kByte) return;  // bytes may still become anything
    if (wanted != Content::PLAIN) widen(block, wanted);
    block->content = wanted;
    return;
  }
  TORCH_CHECK(
      false, "the emulated Spyre card cannot reinterpret memory as ", type,
      ": it holds elements of another type; copy through the host");
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) int64_t copy_halves_f16c(const float* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  return i;
}
#endif

}  // namespace

c10::DeviceAllocator* device_allocator() {
  return the_allocator();
}

ContentScope::ContentScope(c10::ScalarType type, bool fill) {
  t_content = content_of(type);
  t_fill = fill;
}
ContentScope::~ContentScope() {
  t_content = Content::RAW;
  t_fill = true;
}

Block* block_of(const c10::Storage& storage) {
  return storage.data_ptr().cast_context<Block>(&release);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  TORCH_CHECK(storage.device_type() == kSpyre, "not a storage of the emulated Spyre card");
  Block* old = block_of(storage);
  const Content content = old != nullptr ? old->content : t_content;
  c10::DataPtr fresh = the_allocator()->take(bytes, storage.device().index(), content);
  if (old != nullptr && bytes != 0) {
    const size_t kept = std::min(old->nominal, bytes) * (is_wide(content) ? 2 : 1);
    std::memcpy(fresh.get(), old->base, kept);
  }
  auto* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  Block* source = from.device().type() == kSpyre ? block_of(from.storage()) : nullptr;
  Block* target = to.device().type() == kSpyre ? block_of(to.storage()) : nullptr;
  const auto bytes = static_cast<size_t>(from.numel());
  if (bytes == 0) return;
  const bool whole = from.is_contiguous() && to.is_contiguous() && from.storage_offset() == 0 &&
      to.storage_offset() == 0 && (source == nullptr || source->nominal == bytes) &&
      (target == nullptr || target->nominal == bytes);
  TORCH_CHECK(whole, "memory of the emulated Spyre card that holds 16-bit floats is copied by bytes as a whole only");
  if (source != nullptr && target != nullptr) {
    TORCH_CHECK(target->capacity >= source->capacity || !is_wide(source->content), "the target is too small");
    std::memcpy(target->base, source->base, is_wide(source->content) ? 2 * bytes : bytes);
    target->content = source->content;
  } else if (source != nullptr) {
    const auto type = source->content == Content::HALF ? c10::kHalf : c10::kBFloat16;
    const auto count = static_cast<int64_t>(bytes / 2);
    auto floats = at::from_blob(source->base, {count}, at::TensorOptions(c10::kFloat));
    at::from_blob(to.data_ptr(), {count}, at::TensorOptions(type)).copy_(floats);
  } else {
    std::memcpy(target->base, from.const_data_ptr(), bytes);
    target->content = Content::RAW;
  }
}

c10::Storage cpu_storage(const c10::Storage& storage, c10::ScalarType type) {
  Block* block = block_of(storage);
  prepare(block, type);
  const size_t bytes = storage.nbytes() * (is_wide(content_of(type)) ? 2 : 1);
  void* data = block != nullptr ? block->base : nullptr;
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)),
      /*allocator=*/nullptr, /*resizable=*/false);
}

at::Tensor cpu_alias(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      cpu_storage(tensor.storage(), type), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(compute_type(type)));
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return alias;
}

void copy_rounded(const float* from, float* to, int64_t count, c10::ScalarType type) {
  if (type == c10::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(c10::BFloat16(from[i]));
    return;
  }
  int64_t i = 0;
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  if (fast) i = copy_halves_f16c(from, to, count);
#endif
  for (; i < count; ++i) to[i] = static_cast<float>(c10::Half(from[i]));
}

void round_alias(const at::Tensor& alias, c10::ScalarType type) {
  if (alias.numel() == 0) return;
  if (alias.is_non_overlapping_and_dense()) {
    float* values = alias.mutable_data_ptr<float>();
    copy_rounded(values, values, alias.numel(), type);
    return;
  }
  alias.copy_(alias.to(type));
}

void set_fill(int byte) {
  g_fill = byte;
}
int fill() {
  return g_fill;
}
void set_rounding(bool on) {
  g_rounding = on;
}
bool rounding() {
  return g_rounding;
}
void set_total_bytes(size_t bytes) {
  g_total = bytes;
}

}  // namespace stepshape
