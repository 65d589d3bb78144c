// The operators the card has kernels of its own for: memory, views, copies, arange and index_copy_.
#include "device.h"
#include "fallback.h"
#include "judge.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>

namespace stepshape {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// The checker sees a call by its schema; unboxed kernels name theirs.
template <typename... Values>
void judge_as(const char* name, const char* overload, const Values&... values) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  torch::jit::Stack stack;
  torch::jit::push(stack, values...);
  judge(op, stack);
}

bool on_card(const at::Tensor& tensor) {
  return tensor.device().type() == kSpyre;
}

void check_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kFloat:
    case c10::kInt:
    case c10::kLong:
    case c10::kBool:
    case c10::kByte:
      return;
    default:
      refuse("dtype", "a tensor of " + std::string(c10::getDtypeNames(type).first));
  }
}

c10::Device card(std::optional<c10::Device> device) {
  if (device && device->has_index()) return *device;
  return {kSpyre, static_cast<c10::DeviceIndex>(c10::impl::VirtualGuardImpl(kSpyre).getDevice().index())};
}

// The allocator puts memory on the current card.
struct CardScope {
  explicit CardScope(c10::Device device) : old(impl.exchangeDevice(device)) {}
  ~CardScope() {
    impl.uncheckedSetDevice(old);
  }
  c10::impl::VirtualGuardImpl impl{kSpyre};
  c10::Device old;
};

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  check_dtype(type);
  const CardScope where(card(device));
  const ContentScope content(type);
  return at::detail::empty_generic(size, device_allocator(), kKeys, type, format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  check_dtype(type);
  return empty_card(size, stride, type, card(device), /*fill=*/true);
}

at::Tensor as_strided(
    const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  if (self.dim() >= 5) judge_as("aten::as_strided", "", self, size.vec(), stride.vec(), offset);
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

const at::Tensor& resize_tensor(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const auto numel = c10::multiply_integers(size);
  const size_t bytes = (self.storage_offset() + numel) * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    const ContentScope content(self.scalar_type());
    resize_storage(self.storage(), bytes);
  }
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device_type() == kSpyre, "a tensor of the emulated Spyre card needs a storage of the card");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_source_tensor(self, at::empty({0}, self.options()));
}

// True for the byte tensors through which torch copies whole storages (deepcopy, torch.save and load).
bool is_storage_copy(const at::Tensor& from, const at::Tensor& to) {
  if (from.scalar_type() != c10::kByte || to.scalar_type() != c10::kByte) return false;
  for (const auto* side : {&from, &to}) {
    if (!on_card(*side)) continue;
    const Block* block = block_of(side->storage());
    if (block != nullptr && block->content != Content::PLAIN) return true;
  }
  return false;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  judge_as("aten::_copy_from", "", self, target, non_blocking);
  at::AutoDispatchBelowADInplaceOrView guard;
  if (on_card(self) != on_card(target)) count_copy(on_card(target), target.nbytes());
  if (is_storage_copy(self, target)) {
    copy_bytes(self, target);
    return target;
  }
  const auto type = target.scalar_type();
  const at::Tensor to = on_card(target) ? cpu_alias(target) : target;
  at::Tensor from = on_card(self) ? cpu_alias(self) : self;
  // Floats that go into a 16-bit tensor are rounded unless they were of that type before.
  if (on_card(target) && is_wide(type) && self.scalar_type() != type && rounding()) from = from.to(type);
  to.copy_(from);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  count_copy(false, self.nbytes());
  at::AutoDispatchBelowADInplaceOrView guard;
  return cpu_alias(self).item();
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  judge_as("aten::clone", "", self, format ? c10::IValue(static_cast<int64_t>(*format)) : c10::IValue());
  at::AutoDispatchBelowADInplaceOrView guard;
  const auto kind = format.value_or(at::MemoryFormat::Preserve);
  const at::Tensor copy = at::empty_like(self, self.options(), kind);
  cpu_alias(copy).copy_(cpu_alias(self));
  return copy;
}

template <typename T>
void fill_range(const at::Tensor& cpu, const at::Scalar& start, const at::Scalar& step) {
  T* data = cpu.mutable_data_ptr<T>();
  const int64_t count = cpu.numel();
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      data[i] = static_cast<T>(start.toLong() + i * step.toLong());
    } else {
      data[i] = static_cast<T>(start.toDouble() + static_cast<double>(i) * step.toDouble());
    }
  }
}

// The general fallback cannot size an out= that the CPU kernel sizes for itself.
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  judge_as("aten::arange", "start_out", start, end, step, out);
  at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(step.toDouble() != 0, "arange needs a step that is not zero");
  const double span = (end.toDouble() - start.toDouble()) / step.toDouble();
  TORCH_CHECK(span >= 0, "arange: the end lies on the wrong side of the start for this step");
  const auto count = static_cast<int64_t>(std::ceil(span));
  if (out.numel() != count) resize_tensor(out, {count}, std::nullopt);
  const at::Tensor cpu = cpu_alias(out);
  TORCH_CHECK(cpu.is_contiguous(), "arange needs a contiguous out=");
  switch (out.scalar_type()) {
    case c10::kLong:
      fill_range<int64_t>(cpu, start, step);
      break;
    case c10::kInt:
      fill_range<int32_t>(cpu, start, step);
      break;
    case c10::kFloat:
    case c10::kHalf:
    case c10::kBFloat16:
      fill_range<float>(cpu, start, step);
      break;
    default:
      TORCH_CHECK(false, "arange of ", out.scalar_type(), " on the emulated Spyre card; use an int or float dtype");
  }
  if (is_wide(out.scalar_type()) && rounding()) round_alias(cpu, out.scalar_type());
  return out;
}

template <typename Index>
void copy_rows(const at::Tensor& to, const Index* index, const at::Tensor& from) {
  const int64_t rows = to.size(0);
  const size_t bytes = to.numel() / rows * to.itemsize();
  const size_t stride = from.stride(0) * from.itemsize();
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  for (int64_t i = 0; i < from.size(0); ++i) {
    TORCH_CHECK_INDEX(
        index[i] >= 0 && index[i] < rows, "index_copy_: row ", int64_t(index[i]), " of ", rows,
        "; the card has no bounds check and would write elsewhere");
    std::memcpy(target + index[i] * bytes, source + i * stride, bytes);
  }
}

// KV writes: rows into a cache. Through the boxed kernel one call costs as much as a layer.
at::Tensor& index_copy(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  const bool same = on_card(index) && on_card(source) && source.scalar_type() == self.scalar_type() &&
      source.dim() == self.dim() && index.dim() == 1 && self.dim() > 0 && self.size(0) > 0 &&
      (index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt);
  const bool rows = same && c10::maybe_wrap_dim(dim, self.dim()) == 0 && self.is_contiguous() &&
      index.is_contiguous() && index.numel() == source.size(0) && source.sizes().slice(1) == self.sizes().slice(1) &&
      (source.size(0) == 0 || source.select(0, 0).is_contiguous());
  if (!rows) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index_copy_", "");
    torch::jit::Stack stack;
    torch::jit::push(stack, self, dim, index, source);
    run_on_cpu(op, &stack);
    return self;
  }
  judge_as("aten::index_copy_", "", self, dim, index, source);
  const at::Tensor to = cpu_alias(self), from = cpu_alias(source), positions = cpu_alias(index);
  if (index.scalar_type() == c10::kLong) {
    copy_rows(to, positions.const_data_ptr<int64_t>(), from);
  } else {
    copy_rows(to, positions.const_data_ptr<int32_t>(), from);
  }
  return self;
}

// Every operator has finished when it returns, so no memory waits for a stream.
void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize_tensor);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("clone", &clone);
  m.impl("arange.start_out", &arange_out);
  m.impl("index_copy_", &index_copy);
  m.impl("record_stream", &record_stream);
  // As one operator: taken apart, torch would materialise broadcast operands, which the card does in graphs only.
  m.impl("matmul", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  m.impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace

void take_structured_operators() {
  // Never destroyed: taking kernels back while the process ends gains nothing.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace stepshape
