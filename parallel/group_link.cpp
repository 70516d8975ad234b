// The link between the devices of a group's ranks: how it is made, and the messages that go over it.
#include <sluice/parallel/group.h>

#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/observer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace sluice::detail {

namespace {

constexpr double kRollCall = 2;  // seconds for ranks to answer that they wait, too

/// Others did not come to join a link.
struct NobodyJoined : DeviceError {
  using DeviceError::DeviceError;
};

}  // namespace

void Group::move_linked(const char* op, const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives) {
  std::vector<DeviceMessage> out, in;
  for (const Outgoing& s : sends)
    if (s.bytes > 0) out.push_back({s.to, const_cast<std::byte*>(s.data), s.bytes});
  for (const Incoming& r : receives)
    if (r.bytes > 0) in.push_back({r.from, r.data, r.bytes});
  link_->exchange(out, in, watch(op));
}

/// Returns a function that throws when waiting longer for messages of devices is useless. A device does not know which
/// rank it waits for. When time is up the ranks therefore exchange a byte on the host; the error of that exchange names
/// the ranks that do not come. With `joining` there is no such roll call: a rank that cannot join has said so, and all
/// go on without a link.
std::function<void()> Group::watch(const char* op, bool joining) {
  return [this, op, joining, deadline = steady_seconds() + timeout_] {
    transport_->throw_if_failed();
    if (cancel_) fail<CommunicationError>(op, ": given up by rank ", world_rank(rank_));
    if (steady_seconds() < deadline) return;
    if (joining) fail<NobodyJoined>("it waited ", timeout_.load(), " s for others to join");
    std::vector<std::byte> here(static_cast<std::size_t>(size()));
    gather_blocks(op, here.data(), 1, kRollCall, Talk::roll_call);
    fail_together(
        str(op, ": devices did not exchange their messages within ", timeout_.load(), " s, though all ranks wait"));
  };
}

bool Group::linked(Device device) {
  if (!link_tried_) make_link(device);
  return link_ != nullptr;
}

/// The making of a link. In both of its steps, to meet and to join, every rank reports whether its attempt succeeded.
/// If one failed, no rank goes on.
struct Group::LinkTrial {
  /// What a rank reports.
  struct Answer {
    bool able = false, waited = false;  // waited: in vain, because another rank was not able
    bool demands = false;               // a link, or an error
    LinkId id = {};
    DeviceId device = {};
    char why[200] = "";
  };

  Group& group;
  const Device device;
  std::vector<Answer> answers{static_cast<std::size_t>(group.size())};
  const DeviceLinks* links = nullptr;
  std::string text = {};  // the link's name, or why there is none

  Answer& mine() { return answers[static_cast<std::size_t>(group.rank_)]; }
  void fail_for(int rank, const auto&... why) { text = str("host: rank ", group.world_rank(rank), why...); }
  bool all_able(const std::function<void()>& attempt);
  bool all_apart();
  void meet();
  void join();
};

/// True if the attempt succeeds on all ranks.
bool Group::LinkTrial::all_able(const std::function<void()>& attempt) {
  // Other ranks may wait in their attempts for as long as they may.
  const double until = steady_seconds() + group.timeout_ + 2 * kRollCall;
  mine().able = mine().waited = false;
  try {
    attempt();
    mine().able = true;
  } catch (const DeviceError& e) {
    mine().waited = dynamic_cast<const NobodyJoined*>(&e) != nullptr;
    std::snprintf(mine().why, sizeof mine().why, "%s", e.what());
  }
  group.gather_blocks("link", reinterpret_cast<std::byte*>(answers.data()), sizeof(Answer),
                      std::ceil(until - steady_seconds()));
  const auto unable = [&](bool waited) {
    return std::find_if(answers.begin(), answers.end(), [&](const Answer& a) { return !a.able && a.waited == waited; });
  };
  auto first = unable(false);  // the rank with the reason; a rank that waited in vain does not know it
  if (first == answers.end()) first = unable(true);
  if (first == answers.end()) return true;
  fail_for(static_cast<int>(first - answers.begin()), ": ", std::string(first->why));
  return false;
}

/// True if no two ranks share a device. No engine links ranks on one device, and NCCL keeps the resources of
/// a link that it refuses. Therefore NCCL is not asked.
bool Group::LinkTrial::all_apart() {
  for (int r = 0; r < group.size(); ++r)
    for (int other = 0; other < r; ++other)
      if (answers[static_cast<std::size_t>(r)].device == answers[static_cast<std::size_t>(other)].device) {
        fail_for(r, " shares its device with rank ", group.world_rank(other));
        return false;
      }
  return true;
}

/// Finds the engine of links. Rank 0 makes the id by which the ranks will find each other.
void Group::LinkTrial::meet() {
  const char* set = std::getenv("SLUICE_NCCL");
  const std::string_view wish = set ? set : "";
  mine().demands = wish == "on";
  if (!wish.empty() && wish != "off" && wish != "on" && wish != "auto")
    fail<DeviceError>("SLUICE_NCCL=", wish, " in the environment, which may be on, off or auto");
  if (wish == "off") fail<DeviceError>("SLUICE_NCCL=off in the environment");
  backend(device);
  links = links_of(device);
  if (!links) fail<DeviceError>("its backend has no links");
  text = links->name(), mine().device = links->device();
  if (group.rank_ == 0) mine().id = links->new_id();
}

void Group::LinkTrial::join() {
  const auto via_host = [g = &group](DeviceMessages sends, DeviceMessages receives) {  // the link may outlive the trial
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (const DeviceMessage& m : sends) out.push_back({g->world_rank(m.rank), m.data, m.bytes});
    for (const DeviceMessage& m : receives) in.push_back({g->world_rank(m.rank), m.data, m.bytes});
    g->transport_->exchange(g->tag_, out, in, {"link", g->timeout_, &g->cancel_});
  };
  group.link_ = links->join({answers[0].id, group.size(), group.rank_, group.watch("link", true), via_host});
}

void Group::make_link(Device device) {
  LinkTrial trial{*this, device};
  const bool made = trial.all_able([&] { trial.meet(); }) && trial.all_apart() && trial.all_able([&] { trial.join(); });
  if (!made) link_.reset();
  {
    std::lock_guard lock(mutex_);
    link_text_ = trial.text;
  }
  link_tried_ =
      made || std::none_of(trial.answers.begin(), trial.answers.end(), [](const auto& a) { return a.demands; });
  if (!link_tried_) fail_together(str("SLUICE_NCCL=on, but the devices of these ranks have no link — ", trial.text));
}

std::string Group::link_text() const {
  std::lock_guard lock(mutex_);
  return link_text_;
}

}  // namespace sluice::detail
