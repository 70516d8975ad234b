#include <sluice/core/kernel/observer.h>

#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/running_module.h>
#include <sluice/core/node.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace sluice {

namespace detail {

constinit std::atomic<int> observer_count = 0;

namespace {

// The lists of observers, innermost first. `changing` guards the list of all threads; a thread holds it shared while it
// calls observers.
constinit thread_local Observer* of_thread = nullptr;
constinit std::atomic<Observer*> of_all_threads = nullptr;
std::shared_mutex changing;
constinit thread_local bool telling = false;
constinit thread_local ObservedCall* running = nullptr;
constinit thread_local int64_t allocated = 0;

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls f of this thread's observers and those of all threads.
template <class F> void each_observer(F f) {
  std::shared_lock<std::shared_mutex> lock;
  if (!telling) lock = std::shared_lock(changing);
  for (Observer* list : {of_thread, of_all_threads.load(std::memory_order_relaxed)})
    for (Observer* o = list; o; o = o->outer_) f(*o);
}
/// Calls f for each observer. What an observer computes meanwhile is reported to no observer.
template <class F> static void tell(F f) {
  if (telling) return;
  each_observer([&](Observer& o) {
    const Restored<bool> guard(telling, true);
    const Restored<int64_t> uncounted(allocated, allocated);
    f(o);
  });
}

Observer::Observer(Of of) : of_(of) {
  if (of == Of::this_thread) begin();
}
Observer::~Observer() {
  if (of_ == Of::this_thread) end();
}
void Observer::begin() {
  if (!of_thread) allocated = 0;  // without what was created before anyone observed
  if (of_ == Of::this_thread) {
    outer_ = std::exchange(of_thread, this);
  } else {
    std::lock_guard lock(changing);
    outer_ = of_all_threads.load();
    of_all_threads = this;
  }
  observer_count.fetch_add(1, std::memory_order_relaxed);
}
void Observer::end() {
  const auto without_this = [this](Observer* list) {
    if (list == this) return outer_;
    for (Observer* o = list; o; o = o->outer_)
      if (o->outer_ == this) o->outer_ = outer_;
    return list;
  };
  if (of_ == Of::this_thread) {
    of_thread = without_this(of_thread);
  } else {
    std::lock_guard lock(changing);
    of_all_threads = without_this(of_all_threads);
  }
  observer_count.fetch_sub(1, std::memory_order_relaxed);
}

void WorkCounter::on_call(const KernelCall& call) {
  if (call.nested) return;  // the outer call stands for its nested calls
  work_ += call.work;
  ++calls_;
}

void note_op(const char* op, const Tensor& y, Node* node) {
  tell([&](Observer& o) { o.on_op(op, y, node); });
}
void note_vjp(const Node& node, const Tensors& grads) {
  tell([&](Observer& o) { o.on_vjp(node, grads); });
}
void note_allocation(std::size_t bytes) { allocated += static_cast<int64_t>(bytes); }

ObservedCall::ObservedCall(const char* op, Device device)
    : op_(op), device_(device), start_(0), failures_(std::uncaught_exceptions()), outer_(running) {
  if (of_thread || of_all_threads) {
    if (outer_) synchronize(device);  // so that this call's time excludes what the outer call has launched
    start_ = steady_seconds();
  }
  running = this;
}

void ObservedCall::note_widened() {
  for (ObservedCall* call = running; call; call = call->outer_) ++call->work.widened;
}

ObservedCall::~ObservedCall() noexcept(false) {
  running = outer_;
  if (start_ == 0 || (!of_thread && !of_all_threads)) return;  // a call that nobody saw begin has no time
  const double seconds = steady_seconds() - start_;
  if (outer_) outer_->nested_seconds_ += seconds;
  const KernelCall call{
      op_, device_, work, start_, seconds, seconds - nested_seconds_, std::exchange(allocated, 0), outer_ != nullptr};
  try {
    tell([&](Observer& o) { o.on_call(call); });
  } catch (...) {
    if (std::uncaught_exceptions() == failures_) throw;  // else the kernel's own exception, which tells more, goes on
  }
}

}  // namespace detail

std::shared_ptr<detail::Sequence>& detail::this_sequence() {
  // No destructor is needed, because each SequenceScope restores the previous value (thread_end.h says what one costs).
  alignas(std::shared_ptr<Sequence>) static thread_local std::byte place[sizeof(std::shared_ptr<Sequence>)];
  constinit static thread_local std::shared_ptr<Sequence>* current = nullptr;
  if (!current) current = ::new (place) std::shared_ptr<Sequence>;
  return *current;
}

// Defined here, because ModuleScope::path() asks the observers for the names of modules.
constinit thread_local ModuleScope* ModuleScope::top_ = nullptr;

std::string ModuleScope::path(const ModuleNames* names) {
  const auto found = [](const ModuleNames& m, const ModuleScope& s) -> std::string {
    if (const auto it = m.find({s.object_, s.type_}); it != m.end()) return it->second;
    // A derived layer is registered under its own type, but its scope has the type of its base. Modules whose first
    // member is this layer have the same address, but shorter paths.
    std::string longest;
    for (auto it = m.lower_bound({s.object_, ""}); it != m.end() && it->first.first == s.object_; ++it)
      if (it->second.size() > longest.size()) longest = it->second;
    return longest;
  };
  std::vector<const ModuleScope*> scopes;
  for (const ModuleScope* s = top_; s; s = s->outer_) scopes.push_back(s);
  std::string path;
  for (auto it = scopes.rbegin(); it != scopes.rend(); ++it) {
    std::string name = names ? found(*names, **it) : "";
    if (!names)
      detail::each_observer([&](const detail::Observer& o) {
        if (const ModuleNames* known = o.modules(); known && name.empty()) name = found(*known, **it);
      });
    // A registered name is the whole path from the model down; a type only adds one level.
    if (!name.empty()) path = name + " (" + (*it)->type_ + ")";
    else path += (path.empty() ? "" : " / ") + std::string((*it)->type_);
  }
  return path;
}

constinit thread_local const Node* detail::vjp_of = nullptr;

void detail::append_place(std::string& text) {
  const std::string op = text.substr(0, text.find(':')), path = ModuleScope::path();
  if (text.find(" — in ") != text.npos) return;
  std::string name = op;
  std::erase(name, '_');
  const auto same = [](char a, char b) { return a == std::tolower(b); };
  if (!path.empty() && !std::ranges::equal(name, path, same)) text += " — in " + path;
  if (vjp_of && !vjp_of->is_leaf() && op != vjp_of->name()) text += str(" — in the backward pass of ", vjp_of->name());
}

}  // namespace sluice
