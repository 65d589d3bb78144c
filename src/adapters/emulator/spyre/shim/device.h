// The card as torch's runtime sees it: device index, streams, events, random generators.
#pragma once

#include <ATen/core/Generator.h>

namespace stepshape {

void set_device_count(int count);
int device_count();
// The default generator of a card; never destroyed.
const at::Generator& default_generator(c10::DeviceIndex index);
// The CPU generator inside a generator of the card.
at::Generator cpu_generator(const at::Generator& generator);
// Registers the hooks. Once a process.
void register_hooks();

}  // namespace stepshape
