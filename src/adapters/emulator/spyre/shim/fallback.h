// Runs any operator of the card on the CPU, over the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace stepshape {

// Operators that only move or choose elements: their results need no rounding. By name without overload.
void set_exact_operators(const std::vector<std::string>& names);
// The boxed kernel of every operator without one of its own.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Gives the card the operators that torch would split into a shape step and an out= call: a call then reaches the card
// whole, so that what is wrong with it is said by the card's rule. Once a process.
void take_structured_operators();
// Fresh memory of a card as a tensor. `fill` false: the caller writes all of it at once.
at::Tensor empty_card(
    at::IntArrayRef size, at::IntArrayRef stride, c10::ScalarType type, c10::Device card, bool fill);
// A tensor of the card with these contents; 16-bit floats are given as the floats they are computed in.
// `round`: to `type`.
at::Tensor to_device(const at::Tensor& cpu, c10::ScalarType type, c10::Device device, bool round);

}  // namespace stepshape
