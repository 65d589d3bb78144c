// Device guard, streams, events, generator and hooks. Everything runs at once, so streams are names and a recorded
// event has happened.
#include "device.h"
#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>

namespace stepshape {
namespace {

constexpr int kMaxDevices = 64;
std::atomic<int> g_count{1};
std::atomic<int64_t> g_next_stream{1};
thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};

using Clock = std::chrono::steady_clock;
struct Event {
  Clock::time_point at;
};

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < g_count, "spyre:", int(index), " is not there, this host has ", g_count.load(),
      " emulated Spyre card(s); use an index below that or set STEPSHAPE_SPYRE_CARDS");
}

c10::Device whole_device(c10::Device device) {
  return {kSpyre, device.has_index() ? device.index() : t_device};
}

struct SpyreGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kSpyre;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override {
    return {kSpyre, t_device};
  }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    check_index(device.index());
    t_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) t_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Device whole = whole_device(device);
    return c10::Stream(c10::Stream::UNSAFE, whole, t_streams[whole.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, whole_device(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, whole_device(device), g_next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream old = getStream(stream.device());
    t_streams[stream.device_index()] = stream.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    static_cast<Event*>(*event)->at = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "both events must be recorded before their time is asked for");
    const auto span = static_cast<Event*>(end)->at - static_cast<Event*>(start)->at;
    return std::chrono::duration<double, std::milli>(span).count();
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability can;
    can.capability_data.capability_bits = 0;
    auto& types = can.capability_data.supported_scalar_types;
    types.has_Half = types.has_BFloat16 = types.has_Float = types.has_Int = types.has_Long = types.has_Bool = 1;
    return can;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(g_count.load());
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, SpyreGuard)

// A generator of the card draws from a CPU generator that it owns.
struct SpyreGenerator final : c10::GeneratorImpl {
  explicit SpyreGenerator(c10::DeviceIndex index, at::Generator inner = at::detail::createCPUGenerator())
      : c10::GeneratorImpl({kSpyre, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    inner.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner.get_offset();
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  SpyreGenerator* clone_impl() const override {
    return new SpyreGenerator(device_.index(), inner.clone());
  }

  at::Generator inner;
};

c10::DeviceIndex index_or_current(c10::DeviceIndex index) {
  if (index < 0) return t_device;
  check_index(index);
  return index;
}

struct SpyreHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return g_count > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(g_count.load());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    SpyreGuard().setDevice({kSpyre, index});
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return t_device;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return SpyreGuard().exchangeDevice({kSpyre, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? t_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<SpyreGenerator>(index_or_current(index));
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kSpyre, t_device};
  }
  bool isPinnedPtr(const void*) const override {
    return false;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(kSpyre);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

int device_count() {
  return g_count;
}

void set_device_count(int count) {
  TORCH_CHECK(count >= 1 && count <= kMaxDevices, count, " emulated Spyre cards; use 1 to ", kMaxDevices);
  g_count = count;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < kMaxDevices; ++i) {
      all->push_back(at::make_generator<SpyreGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  return (*generators)[index_or_current(index)];
}

at::Generator cpu_generator(const at::Generator& generator) {
  return dynamic_cast<SpyreGenerator&>(*generator.unsafeGetGeneratorImpl()).inner;
}

void register_hooks() {
  static auto* hooks = new SpyreHooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace stepshape
