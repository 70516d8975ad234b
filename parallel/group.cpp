#include <sluice/parallel/group.h>

#include <sluice/core/kernel/observer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

namespace sluice::detail {

namespace {

constexpr std::size_t kShownText = 256;  // bytes of a call's text that ranks exchange when the calls differ

template <class T> std::byte* bytes_of(std::vector<T>& v) { return reinterpret_cast<std::byte*>(v.data()); }

}  // namespace

uint64_t hash_of(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

Group::Group(std::shared_ptr<Transport> transport, std::vector<int> members, int rank, int tag, double timeout)
    : transport_(std::move(transport)), members_(std::move(members)), rank_(rank), tag_(tag), timeout_(timeout) {}

Group::~Group() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    // While an exception unwinds, other ranks may never come to the calls that still run here.
    if (std::uncaught_exceptions() > 0) cancel_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void Group::set_timeout(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) fail<ValueError>("set_timeout: needs seconds above 0 — got ", seconds);
  timeout_ = seconds;
}

// -- the order of calls ----------------------------------------------------------------------------------------------

void Group::call(const std::function<void()>& f) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty(); });
  }
  f();
}

std::shared_ptr<Job> Group::start(std::function<void()> f) {
  auto job = std::make_shared<Job>();
  job->run = std::move(f);
  std::lock_guard lock(mutex_);
  try {
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  } catch (const std::system_error& e) { fail<MemoryError>("a collective: cannot start its thread: ", e.what()); }
  queue_.push_back(job);
  changed_.notify_all();
  return job;
}

void Group::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Job> job = queue_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job->run();
    } catch (...) { error = std::current_exception(); }
    job->run = nullptr;  // it holds tensors
    lock.lock();
    job->error = error;
    job->done = true;
    queue_.pop_front();
    changed_.notify_all();
  }
}

void Group::wait(Job& job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return job.done; });
  if (job.error) std::rethrow_exception(job.error);
}

bool Group::done(const Job& job) {
  std::lock_guard lock(mutex_);
  return job.done;
}

// -- messages --------------------------------------------------------------------------------------------------------

void Group::move(const char* kind, const char* op, std::vector<Outgoing>& sends, std::vector<Incoming>& receives,
                 Device device, double patience, Talk talk) {
  int64_t bytes = 0;
  for (const Outgoing& s : sends) bytes += static_cast<int64_t>(s.bytes);
  const double start = steady_seconds();
  if (device != cpu) {
    move_linked(op, sends, receives);
  } else {
    for (Outgoing& s : sends) s.to = world_rank(s.to);
    for (Incoming& r : receives) r.from = world_rank(r.from);
    transport_->exchange(tag_ + static_cast<int>(talk), sends, receives, {op, patience, &cancel_});
  }
  const double seconds = steady_seconds() - start;
  std::lock_guard lock(mutex_);
  Traffic::Count& c = traffic_.by_kind[kind];
  c.messages += static_cast<int64_t>(sends.size()), c.bytes += bytes, c.seconds += seconds;
}

void Group::exchange(const char* kind, std::vector<Outgoing> sends, std::vector<Incoming> receives, Device device) {
  move(kind, kind, sends, receives, device, timeout_, Talk::data);
}

void Group::exchange_all(const char* kind, const std::function<Outgoing(int)>& to,
                         const std::function<Incoming(int)>& from, Device device) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    if (const Outgoing s = to(r); s.bytes > 0) sends.push_back(s);
    if (const Incoming m = from(r); m.bytes > 0) receives.push_back(m);
  }
  exchange(kind, std::move(sends), std::move(receives), device);
}

void Group::gather_blocks(const char* op, std::byte* blocks, std::size_t bytes, double patience, Talk talk) {
  // Bruck et al. 1997: block i of `rows` is that of rank + i; each round doubles the number of known blocks.
  const int n = size();
  std::vector<std::byte> rows(bytes * static_cast<std::size_t>(n));
  const auto at = [&](int i) { return bytes * static_cast<std::size_t>(i); };
  std::memcpy(rows.data(), blocks + at(rank_), bytes);
  for (int known = 1; known < n; known *= 2) {
    const int more = std::min(known, n - known);
    std::vector<Outgoing> sends{{(rank_ - known + n) % n, rows.data(), at(more)}};
    std::vector<Incoming> receives{{(rank_ + known) % n, rows.data() + at(known), at(more)}};
    move("agreement", op, sends, receives, cpu, patience > 0 ? patience : timeout_.load(), talk);
  }
  for (int i = 0; i < n; ++i) std::memcpy(blocks + at((rank_ + i) % n), rows.data() + at(i), bytes);
}

std::vector<PeerCall> Group::agree(const Call& call) {
  std::vector<PeerCall> told(static_cast<std::size_t>(size()));
  told[static_cast<std::size_t>(rank_)] = {hash_of(call.text), call.length, call.flags};
  gather_blocks(call.op, bytes_of(told), sizeof(PeerCall));
  {
    std::lock_guard lock(mutex_);
    ++traffic_.by_kind[call.op].calls;
    ++traffic_.by_kind["agreement"].calls;
  }
  for (const PeerCall& t : told)
    if (t.hash != told[0].hash) fail_disagreement(call, told);
  return told;
}

void Group::fail_disagreement(const Call& call, const std::vector<PeerCall>& told) {
  std::vector<char> texts(kShownText * told.size());
  const auto text = [&](std::size_t r) { return texts.data() + kShownText * r; };
  std::string mine = call.text;
  if (mine.size() >= kShownText) mine.resize(kShownText - 1);
  std::memcpy(text(static_cast<std::size_t>(rank_)), mine.c_str(), mine.size() + 1);
  gather_blocks(call.op, bytes_of(texts), kShownText);

  std::vector<uint64_t> hashes;
  for (const PeerCall& t : told) hashes.push_back(t.hash);
  const std::size_t usual = usual_rank(hashes);
  std::string what;
  for (std::size_t r = 0; r < told.size(); ++r)
    if (told[r].hash != told[usual].hash && what.size() < 1000)
      what +=
          str(what.empty() ? "" : ", ", "rank ", world_rank(static_cast<int>(r)), " calls ", std::string_view(text(r)));
  // The message must be the same on every rank: it begins with the op of the most frequent call.
  const std::string_view common = text(usual);
  const std::string_view op = common.substr(0, common.find_first_of(" (:"));
  fail_together(str(op, ": ranks disagree — ", what, "; the others call ", common));
}

void Group::fail_together(const std::string& what) {
  CommunicationError error(what);
  error.speaker = world_rank(0);
  throw error;
}

// -- groups ----------------------------------------------------------------------------------------------------------

std::shared_ptr<Group> Group::split(int color, int key) {
  const auto pack = [](int a, int b) {
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b));
  };
  const auto told = agree({"split", "split", pack(color, key), transport_->free_tag});
  // The largest free_tag of all ranks is a tag that is new to all of them.
  int64_t tag = 0;
  std::vector<std::pair<int, int>> order;  // key and rank
  for (std::size_t r = 0; r < told.size(); ++r) {
    tag = std::max(tag, told[r].flags);
    if (static_cast<int32_t>(told[r].length >> 32) == color)
      order.emplace_back(static_cast<int32_t>(told[r].length & 0xffffffff), static_cast<int>(r));
  }
  transport_->free_tag = static_cast<int>(tag) + kTags;
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  int rank = 0;
  for (const auto& [k, r] : order) {
    if (r == rank_) rank = static_cast<int>(members.size());
    members.push_back(world_rank(r));
  }
  return std::make_shared<Group>(transport_, std::move(members), rank, static_cast<int>(tag), timeout_);
}

Traffic Group::traffic() const {
  std::lock_guard lock(mutex_);
  return traffic_;
}
int64_t Group::sent_bytes() const {
  std::lock_guard lock(mutex_);
  return traffic_.total().bytes;
}
void Group::reset_traffic() {
  std::lock_guard lock(mutex_);
  traffic_ = {};
}

std::string signature(DType dtype, const Shape& shape, int free_dim) {
  std::string text = str(dtype, '[');
  for (int d = 0; d < shape.rank(); ++d)
    text += str(d ? "," : "", d == free_dim ? std::string("*") : std::to_string(shape[d]));
  return text + ']';
}

}  // namespace sluice::detail
