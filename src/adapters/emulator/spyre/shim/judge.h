// The gate every kernel call passes: known calls by a table look-up, new ones by the rule checker in Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace stepshape {

// What a call is to the card. The numbers are the Python side's Verdict.
enum class Verdict : int { KERNEL = 0, FALLBACK = 1, FREE = 2, UNJUDGED = 3 };

// Called once for each new signature; throws when a rule is broken.
using Checker = std::function<Verdict(const c10::OperatorHandle&, const torch::jit::Stack&)>;
void set_checker(Checker checker);

// Called to raise a rule by name where no operator call shows it.
using Refuser = std::function<void(const std::string& rule, const std::string& detail)>;
void set_refuser(Refuser refuser);
void refuse(const std::string& rule, const std::string& detail);

// Judges the call on top of `stack`. Does nothing inside a compiled graph, which was checked as a whole.
void judge(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// True while this thread executes a compiled graph. Returns what it was.
bool swap_in_graph(bool now);

struct Counts {
  std::map<std::string, int64_t> fallbacks;  // by operator
  int64_t host_to_device = 0, host_to_device_bytes = 0;
  int64_t device_to_host = 0, device_to_host_bytes = 0;
  int64_t eager_calls = 0;
};
Counts counts();
void count_copy(bool to_device, int64_t bytes);
// Forgets the numbers, and with `signatures` also what has been compiled.
void reset_counts(bool signatures);

}  // namespace stepshape
