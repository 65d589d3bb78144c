// What Python sees of the shim.
#include "device.h"
#include "fallback.h"
#include "judge.h"
#include "memory.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

namespace py = pybind11;
using namespace stepshape;

namespace {

// Kept for the life of the process: an operator may run while the interpreter goes down.
struct Callbacks {
  py::object check, refuse;
};
Callbacks& callbacks() {
  static auto* all = new Callbacks();
  return *all;
}

bool interpreter_is_up() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

// Rules read tensors, ints and lists of them; dtypes and layouts arrive as their numbers.
py::object to_python(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)) : py::none();
  }
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isList()) {
    py::list all;
    for (const auto& item : value.toListRef()) all.append(to_python(item));
    return all;
  }
  return py::none();
}

Verdict check_in_python(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!interpreter_is_up()) return Verdict::FREE;
  py::gil_scoped_acquire gil;
  const auto& schema = op.schema();
  const auto values = torch::jit::last(stack, schema.arguments().size());
  py::list arguments;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!schema.arguments()[i].is_out()) arguments.append(to_python(values[i]));
  }
  const auto& name = op.operator_name();
  return static_cast<Verdict>(py::cast<int>(callbacks().check(name.name, name.overload_name, arguments)));
}

void refuse_in_python(const std::string& rule, const std::string& detail) {
  if (!interpreter_is_up()) return;
  py::gil_scoped_acquire gil;
  callbacks().refuse(rule, detail);
}

py::dict counts_as_dict() {
  const Counts now = counts();
  py::dict all;
  all["fallbacks"] = now.fallbacks;
  all["host_to_device"] = now.host_to_device;
  all["host_to_device_bytes"] = now.host_to_device_bytes;
  all["device_to_host"] = now.device_to_host;
  all["device_to_host_bytes"] = now.device_to_host_bytes;
  all["eager_calls"] = now.eager_calls;
  return all;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register", [](int cards, size_t total_bytes, const std::vector<std::string>& exact) {
    set_device_count(cards);
    set_total_bytes(total_bytes);
    set_exact_operators(exact);
    register_hooks();
    take_structured_operators();
  });
  m.def("card_count", [] { return device_count(); });
  m.def("set_checker", [](py::object check, py::object refuse) {
    callbacks() = {std::move(check), std::move(refuse)};
    set_checker(&check_in_python);
    set_refuser(&refuse_in_python);
  });
  m.def("swap_in_graph", &swap_in_graph);
  m.def("set_fill", &set_fill);
  m.def("fill", &fill);
  m.def("set_rounding", &set_rounding);
  m.def("rounding", &rounding);
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("counts", &counts_as_dict);
  m.def("reset_counts", &reset_counts);
}
