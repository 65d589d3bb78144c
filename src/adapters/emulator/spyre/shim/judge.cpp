// See judge.h. The key of a call is everything the card's compiler specialises on: operator, dtypes, devices, sizes,
// strides, offsets and plain arguments. Rules look at nothing else, so one look a signature is exact.
#include "judge.h"
#include "memory.h"

#include <mutex>
#include <unordered_map>

namespace stepshape {
namespace {

struct State {
  std::mutex mutex;
  Checker checker;
  Refuser refuser;
  std::unordered_map<std::string, Verdict> seen;
  Counts counts;
};
State& state() {
  static auto* all = new State();  // outlives every caller
  return *all;
}
thread_local bool t_in_graph = false;

template <typename T>
void put(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_tensor(std::string& key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key.push_back('-');
    return;
  }
  put(key, static_cast<int8_t>(tensor.scalar_type()));
  put(key, static_cast<int8_t>(tensor.device().type()));
  put(key, static_cast<int8_t>(tensor.dim()));
  for (const auto size : tensor.sizes()) put(key, size);
  for (const auto stride : tensor.strides()) put(key, stride);
  put(key, tensor.storage_offset());
}

void put_value(std::string& key, const c10::IValue& value) {
  if (value.isTensor()) {
    key.push_back('t');
    put_tensor(key, value.toTensor());
  } else if (value.isNone()) {
    key.push_back('n');
  } else if (value.isInt()) {
    key.push_back('i');
    put(key, value.toInt());
  } else if (value.isDouble()) {
    key.push_back('f');
    put(key, value.toDouble());
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? '1' : '0');
  } else if (value.isString()) {
    key.push_back('s');
    key.append(value.toStringRef());
    key.push_back('\0');
  } else if (value.isDevice()) {
    key.push_back('d');
    put(key, static_cast<int8_t>(value.toDevice().type()));
  } else if (value.isList()) {
    key.push_back('[');
    for (const auto& item : value.toListRef()) put_value(key, item);
    key.push_back(']');
  } else {
    key.push_back('?');
  }
}

std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

void set_checker(Checker checker) {
  state().checker = std::move(checker);
}

void set_refuser(Refuser refuser) {
  state().refuser = std::move(refuser);
}

void refuse(const std::string& rule, const std::string& detail) {
  if (state().refuser) state().refuser(rule, detail);
}

void judge(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (t_in_graph) return;
  auto& all = state();
  if (!all.checker) return;
  std::string key;
  key.reserve(256);
  put(key, &op.schema());
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) put_value(key, value);
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    ++all.counts.eager_calls;
    const auto found = all.seen.find(key);
    if (found != all.seen.end()) {
      if (found->second == Verdict::FALLBACK) ++all.counts.fallbacks[name_of(op)];
      return;
    }
  }
  const Verdict verdict = all.checker(op, stack);  // takes the GIL: never with the mutex held
  std::lock_guard<std::mutex> lock(all.mutex);
  if (verdict == Verdict::UNJUDGED || !all.seen.emplace(std::move(key), verdict).second) return;
  if (verdict == Verdict::FALLBACK) ++all.counts.fallbacks[name_of(op)];
}

bool swap_in_graph(bool now) {
  const bool before = t_in_graph;
  t_in_graph = now;
  return before;
}

Counts counts() {
  auto& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.counts;
}

void count_copy(bool to_device, int64_t bytes) {
  auto& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (to_device) {
    ++all.counts.host_to_device;
    all.counts.host_to_device_bytes += bytes;
  } else {
    ++all.counts.device_to_host;
    all.counts.device_to_host_bytes += bytes;
  }
}

void reset_counts(bool signatures) {
  auto& all = state();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.counts = Counts();
  if (signatures) all.seen.clear();
}

}  // namespace stepshape
