// One boxed kernel for all operators: device tensors become CPU tensors over the same storage (16-bit floats as the
// float32 they are held in), the CPU's kernel runs, and what it returns becomes tensors of the card again.
#include "fallback.h"
#include "device.h"
#include "judge.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace stepshape {
namespace {

struct OperatorFacts {
  bool exact;
  std::vector<bool> is_dtype;  // by argument
};

struct Tables {
  std::mutex mutex;
  std::unordered_set<std::string> exact;
  std::unordered_map<const c10::FunctionSchema*, OperatorFacts> facts;
};
Tables& tables() {
  static auto* all = new Tables();
  return *all;
}

bool is_dtype_argument(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  auto& all = tables();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.facts.find(&op.schema());
  if (found != all.facts.end()) return found->second;
  OperatorFacts facts{all.exact.count(op.schema().name()) != 0, {}};
  for (const auto& argument : op.schema().arguments()) facts.is_dtype.push_back(is_dtype_argument(argument));
  return all.facts.emplace(&op.schema(), std::move(facts)).first->second;
}

// One call: which alias stands for which tensor, and the dtype its results have.
struct Frame {
  struct Pair {
    at::Tensor device, cpu;
    bool written;
  };
  c10::SmallVector<Pair, 6> pairs;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 6> storages;
  std::optional<c10::Device> device;
  std::optional<c10::ScalarType> asked;  // an explicit dtype argument
  c10::ScalarType wide = c10::ScalarType::Undefined;
  bool real_float = false;
  bool wide_has_dims = false, float_has_dims = false;

  c10::Storage share(const c10::Storage& storage, c10::ScalarType type) {
    for (auto& known : storages) {
      if (known.first == storage.unsafeGetStorageImpl()) return known.second;
    }
    storages.emplace_back(storage.unsafeGetStorageImpl(), cpu_storage(storage, type));
    return storages.back().second;
  }

  void note(const at::Tensor& tensor) {
    const auto type = tensor.scalar_type();
    if (is_wide(type)) {
      if (wide != c10::ScalarType::Undefined && wide != type) real_float = float_has_dims = true;
      wide = type;
      wide_has_dims |= tensor.dim() > 0;
    } else if (type == c10::kFloat) {
      real_float = true;
      float_has_dims |= tensor.dim() > 0;
    }
  }

  at::Tensor take(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kSpyre) {
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
      note(tensor);
      // A host number beside 16-bit tensors is computed with as a float, like everything else.
      return is_wide(tensor.scalar_type()) ? tensor.to(c10::kFloat) : tensor;
    }
    if (!device) device = tensor.device();
    if (!written) note(tensor);
    const auto type = tensor.scalar_type();
    at::Tensor cpu;
    if (written && tensor.numel() == 0) {
      cpu = at::empty(tensor.sizes(), at::TensorOptions(compute_type(type)));  // an out= to be sized by the kernel
    } else {
      cpu = at::detail::make_tensor<c10::TensorImpl>(
          share(tensor.storage(), type), c10::DispatchKeySet(c10::DispatchKey::CPU),
          c10::scalarTypeToTypeMeta(compute_type(type)));
      auto* impl = cpu.unsafeGetTensorImpl();
      impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    }
    pairs.push_back({tensor, cpu, written});
    return cpu;
  }

  c10::ScalarType float_result() const {
    if (asked && c10::isFloatingType(*asked)) return *asked;
    if (wide == c10::ScalarType::Undefined) return c10::kFloat;
    if (real_float && (float_has_dims || !wide_has_dims)) return c10::kFloat;
    return wide;
  }

  at::Tensor give(const at::Tensor& cpu, bool exact) {
    if (!cpu.defined()) return cpu;
    for (const auto& pair : pairs) {
      if (pair.cpu.is_same(cpu)) return pair.device;
    }
    const auto type = cpu.scalar_type() == c10::kFloat ? float_result() : cpu.scalar_type();
    for (const auto& known : storages) {
      if (known.second.unsafeGetStorageImpl() != cpu.storage().unsafeGetStorageImpl()) continue;
      for (const auto& pair : pairs) {  // a view of an argument
        if (pair.device.storage().unsafeGetStorageImpl() != known.first) continue;
        auto view = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(pair.device.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
            pair.device.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
        return view;
      }
    }
    const bool round = is_wide(type) && !exact && rounding();
    return to_device(cpu, type, device.value_or(c10::Device(kSpyre, 0)), round);
  }

  void finish_written(bool exact) {
    for (auto& pair : pairs) {
      if (!pair.written) continue;
      const auto type = pair.device.scalar_type();
      if (pair.device.numel() == 0 && pair.cpu.numel() != 0) {
        auto fresh = to_device(pair.cpu, type, pair.device.device(), /*round=*/false);
        auto* impl = pair.device.unsafeGetTensorImpl();
        impl->set_storage_keep_dtype(fresh.storage());
        impl->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
        pair.cpu = cpu_alias(pair.device);
      } else if (pair.device.numel() == 0) {
        pair.device.unsafeGetTensorImpl()->set_sizes_and_strides(pair.cpu.sizes(), pair.cpu.strides());
      }
      if (is_wide(type) && !exact && rounding()) round_alias(pair.cpu, type);
    }
  }
};

c10::IValue take_value(Frame& frame, const c10::IValue& value, const c10::Argument& argument, bool is_dtype) {
  const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  if (value.isTensor()) return frame.take(value.toTensor(), written);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(frame.take(tensor, written));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      list.push_back(tensor ? std::optional<at::Tensor>(frame.take(*tensor, written)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) {
    const auto device = value.toDevice();
    if (device.type() != kSpyre) return value;
    if (!frame.device) frame.device = device.has_index() ? device : c10::Device(kSpyre, 0);
    return c10::Device(c10::DeviceType::CPU);
  }
  if (is_dtype && value.isInt()) {
    frame.asked = static_cast<c10::ScalarType>(value.toInt());
    return static_cast<int64_t>(compute_type(*frame.asked));
  }
  if (value.isGenerator()) {
    const auto generator = value.toGenerator();
    return generator.device().type() == kSpyre ? cpu_generator(generator) : generator;
  }
  return value;
}

bool takes_generator(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

}  // namespace

void set_exact_operators(const std::vector<std::string>& names) {
  auto& all = tables();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.exact = {names.begin(), names.end()};
  all.facts.clear();
}

at::Tensor empty_card(
    at::IntArrayRef size, at::IntArrayRef stride, c10::ScalarType type, c10::Device card, bool fill) {
  c10::impl::VirtualGuardImpl impl(kSpyre);
  const c10::Device before = impl.exchangeDevice(card);  // the allocator puts memory on the current card
  const ContentScope content(type, fill);
  const at::Tensor made = at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  impl.uncheckedSetDevice(before);
  return made;
}

at::Tensor to_device(const at::Tensor& cpu, c10::ScalarType type, c10::Device device, bool round) {
  // Dense strides are kept, as the device's own kernel would give them; anything else becomes contiguous.
  const at::Tensor dense = cpu.is_non_overlapping_and_dense() ? cpu : cpu.contiguous();
  const int64_t count = dense.numel();
  const c10::Device card = device.has_index() ? device : c10::Device(kSpyre, 0);
  const at::Tensor result = empty_card(dense.sizes(), dense.strides(), type, card, /*fill=*/false);
  if (count != 0) {
    void* to = block_of(result.storage())->base;
    if (round) {
      copy_rounded(dense.const_data_ptr<float>(), static_cast<float*>(to), count, type);
    } else {
      std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    }
  }
  return result;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  judge(op, *stack);
  const auto& facts = facts_of(op);
  const auto& arguments = op.schema().arguments();
  const size_t count = arguments.size();
  const size_t first = stack->size() - count;
  Frame frame;
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[first + i];
    value = value.isNone() && takes_generator(arguments[i])
        ? c10::IValue(cpu_generator(default_generator(-1)))
        : take_value(frame, value, arguments[i], facts.is_dtype[i]);
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  frame.finish_written(facts.exact);
  const size_t returns = op.schema().returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = frame.give(value.toTensor(), facts.exact);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(frame.give(tensor, facts.exact));
      value = list;
    }
  }
}

}  // namespace stepshape
