#include <sluice/parallel/collectives.h>

#include <sluice/core/kernel/graph.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/raw.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace sluice {

using namespace detail;

namespace {

using Adjoint = std::function<Tensor(const Tensor& g)>;  // a collective is linear, and its adjoint is a collective

constexpr int64_t kRequiresGrad = 1;  // of PeerCall::flags

/// Throws while a graph is recorded: an exchange waits for earlier ones, of which one in the background would wait for
/// the end of the recording.
void refuse_in_recording(const char* op, const Tensor& x) {
  if (const DeviceGraphs* graphs = graphs_of(x.device()); graphs && graphs->recording())
    fail<DeviceError>(op, ": exchanging with other ranks cannot be recorded in a graph, whose replays would repeat it");
}

/// The common part of all ops: ranks compare their calls, then compute(x, told) makes the result. Its x is contiguous
/// and lies where the ranks exchange it; told holds the calls of all ranks. The result gets a history if the operand of
/// any rank has one. An empty adjoint: no gradient.
template <class F>
Tensor collective(const Call& call, const Tensor& x, const Communicator& c, Adjoint adjoint, F compute) {
  Group& group = c.group();
  std::vector<PeerCall> told(static_cast<std::size_t>(c.size()), PeerCall{0, call.length, 0});
  const bool records = grad_enabled() && adjoint, mine = records && x.requires_grad();
  Tensor y;
  {
    ObservedTraffic traffic(call.op, group);
    NoGrad guard;
    if (x.device() == meta) {
      y = compute(x.detach(), told);
    } else {
      refuse_in_recording(call.op, x);
      group.call([&] {
        told = group.agree({call.op, on_device(call.text, x.device()), call.length, mine ? kRequiresGrad : 0});
        y = compute(contiguous(to(x.detach(), meeting_place(group, x.device()))), told);
      });
      y = to(y, x.device());
    }
  }
  const bool anyone =
      mine || std::any_of(told.begin(), told.end(), [](const PeerCall& t) { return t.flags == kRequiresGrad; });
  return recorded(call.op, std::move(y), x, records && anyone, std::move(adjoint));
}

void check_root(const char* op, int root, const Communicator& group) {
  if (root < 0 || root >= group.size()) fail<ValueError>(op, ": root ", root, " is no rank of ", group.size());
}

/// Ring shift. A rank to which no rank sends gets zeros of length `ends` along dim.
Tensor shift(const Tensor& x, int64_t by, const Communicator& group, bool cyclic, int dim, int64_t ends) {
  const int n = group.size(), me = group.rank();
  const auto rank_at = [&](int64_t r) {
    return cyclic ? static_cast<int>(((r % n) + n) % n) : r < 0 || r >= n ? -1 : static_cast<int>(r);
  };
  const int to = rank_at(me + by), from = rank_at(me - by);
  const int64_t length = x.rank() ? x.shape()[dim] : 1;
  const Call call{"ring_shift",
                  str("ring_shift(by ", by, cyclic ? ", cyclic" : ", with ends", ", dim ", dim, ") ",
                      signature(x.dtype(), x.shape(), x.rank() ? dim : -1)),
                  length};
  return collective(
      call, x, group, [=](const Tensor& g) { return shift(g, -by, group, cyclic, dim, length); },
      [&](const Tensor& here, const std::vector<PeerCall>& told) {
        const int64_t arriving = from < 0 ? ends : told[static_cast<std::size_t>(from)].length;
        const Shape shape = x.rank() ? resized(x.shape(), dim, arriving) : x.shape();
        Tensor y = from < 0 ? zeros(shape, here.options()) : empty(shape, here.options(), "ring_shift");
        if (here.device() != meta) shift_raw(group.group(), here, to, y, from);
        return y;
      });
}

void check_background(const char* op, const char* name, const Tensor& x) {
  check_defined(op, {{name, x}});
  check_reducible(op, x.dtype());
  if (x.device() == meta) fail<DeviceError>(op, ": a tensor on meta has nothing to send");
  if (!x.is_contiguous()) fail(op, ": needs a contiguous tensor — got strides ", x.strides());
  if (x.requires_grad()) fail<AutogradError>(op, ": works in place, on tensors without history");
}

/// A letter for the type of an error; throw_kind is the inverse.
char kind_of(const std::exception& e) {
  if (dynamic_cast<const ShapeError*>(&e)) return 's';
  if (dynamic_cast<const DTypeError*>(&e)) return 't';
  if (dynamic_cast<const IOError*>(&e)) return 'i';
  if (dynamic_cast<const ValueError*>(&e)) return 'v';
  return dynamic_cast<const MemoryError*>(&e) ? 'm' : 'c';
}
[[noreturn]] void throw_kind(char kind, const std::string& what) {
  if (kind == 's') throw ShapeError(what);
  if (kind == 't') throw DTypeError(what);
  if (kind == 'i') throw IOError(what);
  if (kind == 'v') throw ValueError(what);
  if (kind == 'm') throw MemoryError(what);
  throw CommunicationError(what);
}

const char* name_of(ReduceOp op) { return op == ReduceOp::sum ? "(sum) " : op == ReduceOp::max ? "(max) " : "(min) "; }

/// Checks that one rank makes as several ranks do.
void check_operand(const char* op, const Tensor& x) {
  check_defined(op, x);
  check_reducible(op, x.dtype());
}

}  // namespace

Tensor all_reduce(const Tensor& x, const Communicator& group, ReduceOp op) {
  check_operand("all_reduce", x);
  if (group.size() == 1) return op == ReduceOp::sum ? x : x.detach();
  const Call call{"all_reduce", "all_reduce" + (name_of(op) + signature(x.dtype(), x.shape()))};
  Adjoint adjoint = [group](const Tensor& g) { return all_reduce(g, group); };
  if (op != ReduceOp::sum) adjoint = nullptr;
  return collective(call, x, group, std::move(adjoint), [&](const Tensor& here, const auto&) {
    if (here.device() == meta) return empty_like(here);
    Tensor y = clone(here);
    all_reduce_raw(group.group(), y, op);
    return y;
  });
}

Tensor reduce(const Tensor& x, int root, const Communicator& group) {
  check_operand("reduce", x), check_root("reduce", root, group);
  if (group.size() == 1) return x;
  const Call call{"reduce", str("reduce(root ", root, ") ", signature(x.dtype(), x.shape()))};
  return collective(
      call, x, group, [root, group](const Tensor& g) { return broadcast(g, root, group); },
      [&](const Tensor& here, const auto&) {
        if (here.device() == meta) return empty_like(here);
        std::vector<Tensor> parts;  // root gets all of x, the others nothing
        for (int r = 0; r < group.size(); ++r) parts.push_back(r == root ? here : empty({0}, here.options()));
        Tensor y = zeros_like(here);
        reduce_scatter_raw(group.group(), "reduce", ReduceOp::sum, parts, y);
        return y;
      });
}

Tensor broadcast(const Tensor& x, int root, const Communicator& group) {
  check_defined("broadcast", x), check_root("broadcast", root, group);
  if (group.size() == 1) return x;
  const Call call{"broadcast", str("broadcast(root ", root, ") ", signature(x.dtype(), x.shape()))};
  const bool as_i64 = x.dtype() == i32 || x.dtype() == boolean;  // integers and bool travel as i64
  const Tensor y = collective(
      call, as_i64 ? to(x, i64) : x, group, [root, group](const Tensor& g) { return reduce(g, root, group); },
      [&](const Tensor& here, const auto&) {
        if (here.device() == meta) return empty_like(here);
        Tensor out = group.rank() == root ? clone(here) : empty_like(here);
        broadcast_raw(group.group(), out, root);
        return out;
      });
  return as_i64 ? to(y, x.dtype()) : y;
}

/// all_gather() that also needs the same `what` on all ranks.
static Tensor gathered(const Tensor& x, int d, const Communicator& group, const std::string& what) {
  const Call call{"all_gather", str("all_gather(dim ", d, ") ", signature(x.dtype(), x.shape(), d), what),
                  x.shape()[d]};
  auto lengths = std::make_shared<std::vector<int64_t>>();
  return collective(
      call, x, group, [=](const Tensor& g) { return reduce_scatter(g, d, group, *lengths); },
      [&](const Tensor& here, const std::vector<PeerCall>& told) {
        int64_t total = 0;
        for (const PeerCall& t : told) lengths->push_back(t.length), total = checked_add("all_gather", total, t.length);
        Tensor y = empty(resized(x.shape(), d, total), here.options(), "all_gather");
        if (here.device() == meta) return y;
        std::vector<Tensor> pieces, places;  // contiguous places receive in place
        int64_t start = 0;
        for (std::size_t r = 0; r < told.size(); start += told[r++].length) {
          places.push_back(narrow(y, d, start, told[r].length));
          pieces.push_back(static_cast<int>(r) == group.rank() ? here
                           : places[r].is_contiguous()         ? places[r]
                                                               : empty(places[r].shape(), y.options()));
        }
        all_gather_raw(group.group(), "all_gather", here, pieces);
        for (std::size_t r = 0; r < pieces.size(); ++r)
          if (pieces[r].ref() != places[r].ref()) copy_elements(pieces[r], places[r]);
        return y;
      });
}

Tensor all_gather(const Tensor& x, int64_t dim, const Communicator& group) {
  check_operand("all_gather", x);
  const int d = wrap_dim("all_gather", dim, x.rank());
  if (x.rank() == 0) fail("all_gather: a scalar has no dims; use unsqueeze");
  return group.size() == 1 ? x : gathered(x, d, group, "");
}

Tensor reduce_scatter(const Tensor& x, int64_t dim, const Communicator& group, const std::vector<int64_t>& wanted) {
  check_operand("reduce_scatter", x);
  const int d = wrap_dim("reduce_scatter", dim, x.rank());
  if (x.rank() == 0) fail("reduce_scatter: a scalar has no dims");
  const std::vector<int64_t> lengths = wanted.empty() ? even_pieces(x.shape()[d], group.size()) : wanted;
  int64_t total = 0;
  for (const int64_t n : lengths) {
    if (n < 0) fail<ValueError>("reduce_scatter: negative length ", n);
    total = checked_add("reduce_scatter", total, n);
  }
  const std::string text = joined(lengths, ",");
  if (static_cast<int>(lengths.size()) != group.size() || total != x.shape()[d])
    fail("reduce_scatter: lengths [", text, "] must be ", group.size(), " that add up to dim ", dim, " of x=", x);
  if (group.size() == 1) return x;
  const Call call{"reduce_scatter",
                  str("reduce_scatter(dim ", d, ") ", signature(x.dtype(), x.shape()), " to [", text, "]")};
  return collective(
      call, x, group, [=](const Tensor& g) { return all_gather(g, d, group); },
      [&](const Tensor& here, const auto&) {
        std::vector<Tensor> parts;
        int64_t start = 0;
        for (const int64_t n : lengths) parts.push_back(contiguous(narrow(here, d, start, n))), start += n;
        Tensor y = empty_like(parts[static_cast<std::size_t>(group.rank())]);
        if (here.device() != meta) reduce_scatter_raw(group.group(), "reduce_scatter", ReduceOp::sum, parts, y);
        return y;
      });
}

Tensor ring_shift(const Tensor& x, int by, const Communicator& group, ShiftOptions options) {
  check_operand("ring_shift", x);
  const int d = x.rank() ? wrap_dim("ring_shift", options.dim, x.rank()) : 0;
  if (by == 0 || (options.cyclic && by % group.size() == 0)) return x;
  if (group.size() == 1)
    return record("ring_shift", zeros_like(x), {x}, {}, [](const Tensor& g) { return zeros_like(g); });
  return shift(x, by, group, options.cyclic, d, x.rank() ? x.shape()[d] : 1);
}

/// exclusive_scan() of sums; with a decay, of a recurrence.
static Tensor scanned(const Tensor& decay, const Tensor& state, const Communicator& group) {
  const int64_t m = state.numel(), n = decay.defined() ? decay.numel() : 0;
  Tensor both = reshape(state, {m});  // in one message
  if (n > 0) both = cat({both, reshape(decay, {n})});
  both = unsqueeze(both, 0);
  const std::string what = decay.defined() ? str(" of decay ", decay, " and state ", state) : str(" of ", state);
  const Tensor all = widened(group.size() == 1 ? both : gathered(both, 0, group, what));  // rounded once, at the end
  const auto state_of = [&](int r) { return reshape(narrow(select(all, 0, r), 0, 0, m), state.shape()); };
  Tensor s;
  if (group.rank() > 0) s = state_of(0);
  else s = reshape(sum(narrow(narrow(all, 0, 0, 0), 1, 0, m), {0}), state.shape());  // zeros, with the history of `all`
  for (int r = 1; r < group.rank(); ++r) {
    if (decay.defined()) s = reshape(narrow(select(all, 0, r), 0, m, n), decay.shape()) * s;
    s = s + state_of(r);
  }
  return to(s, state.dtype());
}

Tensor exclusive_scan(const Tensor& x, const Communicator& group) {
  check_operand("exclusive_scan", x);
  return scanned({}, x, group);
}

Tensor exclusive_scan(const Tensor& decay, const Tensor& state, const Communicator& group) {
  check_defined("exclusive_scan", {{"decay", decay}, {"state", state}});
  check_reducible("exclusive_scan", state.dtype());
  if (decay.dtype() != state.dtype())
    fail<DTypeError>("exclusive_scan: decay is ", decay.dtype(), ", state ", state.dtype());
  if (!stretches_to(decay.shape(), state.shape()))
    fail("exclusive_scan: decay=", decay, " does not broadcast to state=", state);
  return scanned(decay, state, group);
}

std::string broadcast_text(const std::string& text, int root, const Communicator& group) {
  if (group.size() == 1) return text;
  const auto size = broadcast(Tensor::from<int64_t>({static_cast<int64_t>(text.size())}), root, group).item<int64_t>();
  Tensor bytes = zeros({ceil_div(size, 8)}, {i64});
  if (group.rank() == root) std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes.raw()));
  bytes = broadcast(bytes, root, group);
  return {reinterpret_cast<const char*>(bytes.raw()), static_cast<std::size_t>(size)};
}

void on_rank_0(const Communicator& group, const std::function<void()>& f) {
  std::string what;
  std::exception_ptr error;
  if (group.rank() == 0) {
    try {
      f();
    } catch (const std::exception& e) {
      what = str(kind_of(e), e.what());
      error = std::current_exception();
    } catch (...) {
      what = "can exception that is no std::exception";  // of the kind c
      error = std::current_exception();
    }
  }
  what = broadcast_text(what, 0, group);
  if (what.empty()) return;
  if (error) std::rethrow_exception(error);
  throw_kind(what[0], what.substr(1));
}

std::vector<int64_t> even_pieces(int64_t n, int ranks) {
  if (n < 0 || ranks < 1) fail<ValueError>("even_pieces: ", n, " in ", ranks, " pieces");
  std::vector<int64_t> pieces(static_cast<std::size_t>(ranks), n / ranks);
  for (int64_t r = 0; r < n % ranks; ++r) ++pieces[static_cast<std::size_t>(r)];
  return pieces;
}

// -- in the background -----------------------------------------------------------------------------------------------

bool Pending::done() const { return !job_ || group_.group().done(*job_); }

void Pending::wait() {
  if (!job_) return;
  ObservedTraffic traffic("wait", group_.group());
  const std::shared_ptr<Job> job = std::move(job_);
  group_.group().wait(*job);
}

Pending start_all_reduce(Tensor& x, const Communicator& group, ReduceOp op) {
  check_background("start_all_reduce", "x", x);
  Pending p;
  if (group.size() == 1) return p;
  refuse_in_recording("start_all_reduce", x);
  x.bump_version();
  p.group_ = group;
  p.job_ = group.group().start([x, op, g = &group.group()]() mutable {
    g->agree({"all_reduce", on_device("all_reduce" + (name_of(op) + signature(x.dtype(), x.shape())), x.device())});
    Tensor here = to(x, meeting_place(*g, x.device()));
    all_reduce_raw(*g, here, op);
    if (here.device() != x.device()) copy_(x, to(here, x.device()));
  });
  return p;
}

Pending start_all_gather(const Tensor& x, Tensor& y, const Communicator& group) {
  check_background("start_all_gather", "x", x);
  check_background("start_all_gather", "y", y);
  if (x.rank() == 0 || y.rank() != x.rank() || resized(y.shape(), 0, x.shape()[0]) != x.shape() ||
      y.dtype() != x.dtype())
    fail("start_all_gather: y=", y, " cannot hold pieces like x=", x);
  Pending p;
  if (group.size() == 1) {
    if (y.shape() != x.shape()) fail("start_all_gather: y=", y, " has ", y.shape()[0], " rows for ", x.shape()[0]);
    copy_(y, x);
    return p;
  }
  refuse_in_recording("start_all_gather", x);
  y.bump_version();
  p.group_ = group;
  p.job_ = group.group().start([x, y, g = &group.group()]() mutable {
    const auto told = g->agree(
        {"all_gather", on_device("all_gather(dim 0) " + signature(x.dtype(), x.shape(), 0), x.device()), x.shape()[0]});
    const Device place = meeting_place(*g, x.device());
    const auto total = std::accumulate(told.begin(), told.end(), int64_t{0},
                                       [](int64_t n, const PeerCall& t) { return n + t.length; });
    // y of other ranks may have the right length, so their calls go on: this rank takes part before it throws.
    std::vector<Tensor> pieces;
    Tensor whole =
        total == y.shape()[0] && y.device() == place ? y : empty(resized(y.shape(), 0, total), {y.dtype(), place});
    int64_t start = 0;
    for (const PeerCall& t : told) pieces.push_back(narrow(whole, 0, start, t.length)), start += t.length;
    const Tensor here = to(x, place);
    all_gather_raw(*g, "all_gather", here, pieces);
    copy_elements(here, pieces[static_cast<std::size_t>(g->rank())]);
    if (total == y.shape()[0] && y.device() != place) copy_(y, to(whole, y.device()));
    if (total != y.shape()[0]) fail("start_all_gather: y=", y, " has ", y.shape()[0], " rows for ", total);
  });
  return p;
}

}  // namespace sluice
