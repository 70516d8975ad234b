// Links between emulated devices, in place of NCCL. Their memory is the host's, so the ranks' own messages carry it.
#include <sluice/core/kernel/link.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/runtime.h>

#include <unistd.h>

#include <atomic>
#include <cstring>

namespace sluice::cuda {

namespace {

using namespace sluice::detail;

class Link final : public DeviceLink {
 public:
  explicit Link(const LinkRequest& request) : via_host_(request.via_host) {}
  void exchange(DeviceMessages sends, DeviceMessages receives, const std::function<void()>&) override {
    refuse_in_recording("exchanging with other ranks");
    runtime().synchronize(0);
    via_host_(sends, receives);
  }

 private:
  std::function<void(DeviceMessages, DeviceMessages)> via_host_;
};

/// Each rank has a device of its own, whether ranks are threads or processes.
DeviceId device() {
  static std::atomic<uint32_t> made = 0;
  const uint32_t words[] = {static_cast<uint32_t>(::getpid()), ++made};
  DeviceId id{};
  std::memcpy(id.data(), words, sizeof words);
  return id;
}

constexpr DeviceLinks kLinks{
    [] { return std::string("emulated"); }, &device, [] { return LinkId{}; },
    [](const LinkRequest& request) -> std::unique_ptr<DeviceLink> { return std::make_unique<Link>(request); }};
const bool installed = (install_links(DeviceKind::cuda, kLinks), true);

}  // namespace

}  // namespace sluice::cuda
