// Groups, and what happens when ranks fail, disagree or do not come.
#include <sluice/parallel/communicator.h>

#include "parallel/ranks.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/group.h>
#include <sluice/parallel/sequence_attention.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <type_traits>
#include <typeinfo>

using namespace sluice;
using namespace sluice::testing;

namespace {

Tensor number(double v) { return full({}, v, {f64}); }

/// Every rank says this.
void check_all(const std::vector<std::string>& errors, const std::string& want) {
  for (std::size_t r = 0; r < errors.size(); ++r) {
    INFO("rank " << r);
    CHECK(errors[r] == want);
  }
}

template <class E> void expect_throw(const std::function<void()>& f) {
  try {
    f();
  } catch (const E&) { return; }
  expect(false, "throws");
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("communicator: alone, nothing is sent and nothing waits", "[parallel][threads]") {
  const Communicator alone;
  CHECK(alone.size() == 1);
  CHECK(alone.rank() == 0);
  alone.barrier();
  alone.check_same("config", "x");
  const Tensor x = full({3}, 2, {f64}).requires_grad_();
  CHECK(all_reduce(x, alone).ref() == x.ref());
  CHECK(all_gather(x, 0, alone).ref() == x.ref());
  CHECK(alone.split(3).size() == 1);
  CHECK(alone.traffic().by_kind.empty());
}

TEST_CASE("communicator: groups by color, ordered by key, do not mix", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    const int me = all.rank(), n = all.size();
    const Communicator parity = all.split(me % 2), backwards = all.split(0, -me), same = all.split(-5, 7);
    expect(parity.size() == (n + 1 - me % 2) / 2 && parity.rank() == me / 2, "by parity");
    expect(backwards.size() == n && backwards.rank() == n - 1 - me, "by key");
    expect(same.size() == n && same.rank() == me, "equal keys keep their order");
    if (n > 1) expect(parity.world_rank(parity.rank()) == me, "world rank");
    double want = 0;
    for (int r = me % 2; r < n; r += 2) want += r;
    expect(all_reduce(number(me), parity).item() == want, "sum of a group");
    const Communicator pairs = backwards.split(backwards.rank() / 2);  // groups of groups
    expect(pairs.size() <= 2, "pairs");
    expect(all_gather(full({1}, me, {f64}), 0, backwards).to_vector<double>()[0] == n - 1, "ordered backwards");
    // What one group does in the background does not hold up another.
    Tensor slow = full({100000}, 1, {f64});
    Pending p = start_all_reduce(slow, same);
    expect(all_reduce(number(1), pairs).item() == pairs.size(), "meanwhile");
    p.wait();
    expect(select(slow, 0, 99999).item() == n, "and after");
  }));
}

TEST_CASE("communicator: ranks that disagree all fail with one message", "[parallel]") {
  const auto disagree = [](const std::function<void(const Communicator&)>& odd,
                           const std::function<void(const Communicator&)>& usual, int who = 2) {
    return errors_on_ranks(4, [&](const Communicator& all) {
      all.barrier();
      if (all.rank() == who) odd(all);
      else usual(all);
    });
  };
  const Tensor x = zeros({3, 4});
  const auto reduce_x = [&](const Communicator& c) { all_reduce(x, c); };
  check_all(
      disagree(
          [&](auto& c) {
            all_reduce(zeros({3, 5}), c);
          },
          reduce_x),
      "all_reduce: ranks disagree — rank 2 calls all_reduce(sum) f32[3,5]; the others call all_reduce(sum) f32[3,4]");
  check_all(
      disagree(
          [&](auto& c) {
            all_reduce(zeros({3, 4}, {f64}), c);
          },
          reduce_x, 0),
      "all_reduce: ranks disagree — rank 0 calls all_reduce(sum) f64[3,4]; the others call all_reduce(sum) f32[3,4]");
  check_all(
      disagree([&](auto& c) { all_reduce(x, c, ReduceOp::max); }, reduce_x, 3),
      "all_reduce: ranks disagree — rank 3 calls all_reduce(max) f32[3,4]; the others call all_reduce(sum) f32[3,4]");
  check_all(disagree([&](auto& c) { c.barrier(); }, reduce_x, 1),
            "all_reduce: ranks disagree — rank 1 calls barrier; the others call all_reduce(sum) f32[3,4]");
  check_all(disagree(
                [&](auto& c) {
                  all_gather(zeros({2, 5}), 0, c);
                },
                [&](auto& c) { all_gather(x, 0, c); }, 1),
            "all_gather: ranks disagree — rank 1 calls all_gather(dim 0) f32[*,5]; the others call all_gather(dim 0) "
            "f32[*,4]");
  check_all(
      disagree(
          [&](auto& c) {
            reduce_scatter(x, 0, c, {3, 0, 0, 0});
          },
          [&](auto& c) { reduce_scatter(x, 0, c); }, 1),
      "reduce_scatter: ranks disagree — rank 1 calls reduce_scatter(dim 0) f32[3,4] to [3,0,0,0]; the others call "
      "reduce_scatter(dim 0) f32[3,4] to [1,1,1,0]");
  check_all(disagree([&](auto& c) { c.check_same("settings", "a = 1\nb = 2\nc = 3"); },
                     [&](auto& c) { c.check_same("settings", "a = 1\nb = 7\nc = 4"); }),
            "settings: rank 2 has another one — got 'b = 2'; the others have 'b = 7'");
  check_all(
      disagree([&](auto& c) { c.check_same("settings", "a"); }, [&](auto& c) { c.check_same("settings", "a\nb"); }),
      "settings: rank 2 has another one — got ''; the others have 'b'");
  const auto settings_of = [](const std::string& all) {  // a letter for each rank
    return errors_on_ranks(
        4, [&](const Communicator& c) { c.check_same("settings", all.substr(static_cast<std::size_t>(c.rank()), 1)); });
  };
  check_all(settings_of("abab"), "settings: ranks 1 and 3 have another one — got 'b'; the others have 'a'");
  check_all(settings_of("abcd"), "settings: ranks 1, 2 and 3 have another one — got 'b'; the others have 'a'");
  // Of a long call every rank sees the same first part; behind that of rank 3 there is no room.
  const std::string odd(1000, 'a'), usual(1000, 'b');
  const auto shown = [](const std::string& what) { return ("check_same: " + what).substr(0, 255); };
  for (const int who : {0, 3})
    check_all(
        disagree([&](auto& c) { c.check_same(odd, ""); }, [&](auto& c) { c.check_same(usual, ""); }, who),
        str("check_same: ranks disagree — rank ", who, " calls ", shown(odd), "; the others call ", shown(usual)));
  check_all(disagree(
                [&](auto& c) {
                  Tensor y = zeros({5});
                  start_all_reduce(y, c).wait();
                },
                [&](auto& c) {
                  Tensor y = zeros({6});
                  start_all_reduce(y, c).wait();
                }),
            "all_reduce: ranks disagree — rank 2 calls all_reduce(sum) f32[5]; the others call all_reduce(sum) f32[6]");
}

TEST_CASE("communicator: after a disagreement that was caught the group works on", "[parallel][threads]") {
  CHECK_NOTHROW(run_ranks(3, [](const Communicator& all) {
    for (int round = 0; round < 3; ++round) {
      bool failed = false;
      try {
        all_reduce(zeros({1 + (all.rank() == round)}), all);
      } catch (const CommunicationError&) { failed = true; }
      expect(failed && all_reduce(number(2), all).item() == 6, "goes on");
    }
  }));
}

TEST_CASE("communicator: a rank that throws, ends or does not come is named to all", "[parallel][threads]") {
  auto errors = errors_on_ranks(4, [](const Communicator& all) {
    if (all.rank() == 2) fail<ValueError>("the reason");
    while (true) all_reduce(number(1), all);
  });
  CHECK(errors[2] == "the reason");
  for (const std::size_t r : {0u, 1u, 3u}) CHECK(errors[r] == "rank 2 failed: the reason");
  CHECK_THROWS_AS(run_ranks(3,
                            [](const Communicator& all) {
                              if (all.rank() == 1) fail<ValueError>("first");
                              all.barrier();
                            }),
                  ValueError);
  const auto text = [](int ranks) -> std::string {  // of what the last rank throws
    try {
      run_ranks(ranks, [](const Communicator& all) {
        if (all.rank() + 1 == all.size()) fail<ValueError>("first");
        all.barrier();
      });
    } catch (const ValueError& e) { return e.what(); }
    return "";
  };
  CHECK(text(3) == "first — on rank 2");
  CHECK(text(1) == "first");

  errors = errors_on_ranks(4, [](const Communicator& all) {
    if (all.rank() == 1) return;
    all.barrier();
  });
  for (const std::size_t r : {0u, 2u, 3u}) CHECK(errors[r] == "barrier: rank 1 has ended");

  // Rank 0 waits for rank 1 in one group, rank 1 for rank 2 in another; rank 2 is busy.
  std::atomic<bool> failed = false;
  const double took = seconds_of([&] {
    errors = errors_on_ranks(3, [&](const Communicator& all) {
      const Communicator first = all.split(all.rank() == 2), last = all.split(all.rank() == 0);
      all.barrier();
      first.set_timeout(0.2), last.set_timeout(5);
      if (all.rank() == 2)
        for (int i = 0; i < 500 && !failed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      try {
        if (all.rank() == 0) first.barrier();
        else last.barrier();
      } catch (...) {
        failed = true;
        throw;
      }
    });
  });
  check_all(errors, "barrier: rank 2 did not come within 0.2 s");
  CHECK(took < 4);

  errors = errors_on_ranks(3, [](const Communicator& all) {  // each in a group of its own
    const Communicator a = all.split(0), b = all.split(0), c = all.split(0);
    (all.rank() == 0 ? a : all.rank() == 1 ? b : c).set_timeout(all.rank() == 0 ? 0.2 : 20);
    if (all.rank() == 0) a.barrier();
    if (all.rank() == 1) b.barrier();
    if (all.rank() == 2) all_reduce(number(1), c);
  });
  for (const std::string& e : errors)
    CHECK_THAT(e, Contains("within 0.2 s, all wait for one another — rank 0 in barrier"));
}

TEST_CASE("communicator: the next call of a rank that failed alone is no data of this one", "[parallel][threads]") {
  const auto errors = errors_on_ranks(2, [](const Communicator& all) {
    all.set_timeout(0.2);
    all.group().agree({"first", "first"});
    std::array<std::byte, sizeof(detail::PeerCall)> from_1;  // as long as what rank 1 sends in its next call
    if (all.rank() == 0) all.group().exchange("first", {}, {{1, from_1.data(), from_1.size()}});
    else all.group().agree({"second", "second"});
  });
  for (const std::string& e : errors) CHECK_THAT(e, Contains("within 0.2 s"));  // both wait in vain
}

TEST_CASE("communicator: unwinding gives up what runs in the background", "[parallel][threads]") {
  const double took = seconds_of([] {
    CHECK_THROWS_AS(run_ranks(2,
                              [](const Communicator& all) {
                                const Communicator own = all.split(0);
                                all.barrier();
                                Tensor x = zeros({4});
                                Pending p;
                                if (all.rank() == 0) {
                                  p = start_all_reduce(x, own);
                                  fail<ValueError>("while it waits");
                                }
                                all.barrier();
                              }),
                    ValueError);
  });
  CHECK(took < 5);
}

TEST_CASE("communicator: what rank 0 throws, all throw, with its type", "[parallel]") {
  const auto told = []<class E>(const Communicator& all, std::type_identity<E>) {
    try {
      on_rank_0(all, [] { fail<E>("rank 0 says no"); });
    } catch (const E& e) {
      return expect(typeid(e) == typeid(E) && std::string(e.what()) == "rank 0 says no", "an error as on rank 0");
    }
    expect(false, "an error on every rank");
  };
  CHECK_NOTHROW(on_ranks([&](const Communicator& all) {
    told(all, std::type_identity<ShapeError>());
    told(all, std::type_identity<DTypeError>());
    told(all, std::type_identity<IOError>());
    told(all, std::type_identity<ValueError>());
    told(all, std::type_identity<MemoryError>());
    told(all, std::type_identity<CommunicationError>());
    std::string heard;
    try {
      on_rank_0(all, [] { throw 7; });
    } catch (int) { heard = "7"; } catch (const CommunicationError& e) {
      heard = e.what();
    }
    expect(heard == (all.rank() == 0 ? "7" : "an exception that is no std::exception"), "any exception on every rank");
    on_rank_0(all, [] {});
    all.set_timeout(77);
    expect(all.timeout() == 77, "the timeout is the one that was set");
    expect(all.device_link().empty(), "no link between devices");
  }));
}

TEST_CASE("communicator: an exception without words, and a time limit that is no number", "[parallel][threads]") {
  std::string heard;
  CHECK_THROWS_AS(run_ranks(2,
                            [&](const Communicator& all) {
                              if (all.rank() == 1) throw 7;
                              try {
                                while (true) all.barrier();
                              } catch (const CommunicationError& e) { heard = e.what(); }
                            }),
                  int);
  CHECK(heard == "rank 1 failed: an exception of another kind");
  for (const char* text : {"0", "-1", "soon", "nan", "inf"}) {
    ::setenv("SLUICE_TIMEOUT", text, 1);
    CHECK_THROWS_WITH(run_ranks(2, [](const Communicator&) {}),
                      StartsWith(str("SLUICE_TIMEOUT: needs seconds above 0 — got \"", text, "\" — on rank ")));
  }
  ::setenv("SLUICE_TIMEOUT", "12.5", 1);
  std::atomic<int> as_set = 0;
  run_ranks(2, [&](const Communicator& all) { as_set += all.timeout() == 12.5; });
  ::unsetenv("SLUICE_TIMEOUT");
  CHECK(as_set == 2);
}

TEST_CASE("communicator: arguments out of range", "[parallel][threads]") {
  CHECK_THROWS_AS(run_ranks(0, [](const Communicator&) {}), ValueError);
  CHECK_THROWS_AS(run_ranks(1000000, [](const Communicator&) {}), ValueError);
  CHECK_THROWS_AS(run_ranks(2, nullptr), ValueError);
  const Communicator alone;
  for (const double s : {0.0, -1.0, std::nan(""), double{INFINITY}}) CHECK_THROWS_AS(alone.set_timeout(s), ValueError);
  CHECK_THROWS_AS(broadcast(zeros({2}), 1, alone), ValueError);
  CHECK_THROWS_AS(reduce(zeros({2}), -1, alone), ValueError);
  CHECK_THROWS_AS(all_gather(zeros({}), 0, alone), ShapeError);
  CHECK_THROWS_AS(all_gather(zeros({2}), 1, alone), ShapeError);
  CHECK_THROWS_AS(reduce_scatter(zeros({4}), 0, alone, {3}), ShapeError);
  CHECK_THROWS_AS(reduce_scatter(zeros({4}), 0, alone, {5, -1}), ValueError);
  Tensor five = zeros({5});
  CHECK_THROWS_AS(start_all_gather(zeros({1}), five, alone), ShapeError);
  CHECK_THROWS_AS(start_all_gather(zeros({5}, {f64}), five, alone), ShapeError);
  CHECK_THROWS_AS(even_pieces(-1, 2), ValueError);
  CHECK_THROWS_AS(even_pieces(1, 0), ValueError);
  CHECK(even_pieces(7, 3) == std::vector<int64_t>{3, 2, 2});
  CHECK_NOTHROW(run_ranks(2, [](const Communicator& all) {
    Tensor t = transpose(zeros({2, 3}), 0, 1), m = zeros({2}, {f32, meta}), w = zeros({2}).requires_grad_(),
           i = zeros({2}, {i32}), y = zeros({5});
    expect_throw<ShapeError>([&] { start_all_reduce(t, all); });
    expect_throw<DeviceError>([&] { start_all_reduce(m, all); });
    expect_throw<AutogradError>([&] { start_all_reduce(w, all); });
    expect_throw<DTypeError>([&] { start_all_reduce(i, all); });
    expect_throw<DTypeError>([&] { all_reduce(i, all); });
    expect_throw<ShapeError>([&] { start_all_gather(zeros({2}), y, all).wait(); });
    Tensor wide = zeros({4}, {f64});
    expect_throw<ShapeError>([&] { start_all_gather(zeros({2}), wide, all); });
    expect_throw<DTypeError>([&] { exclusive_scan(zeros({2}), wide, all); });
    expect_throw<ValueError>([&] { all.world_rank(2); });
    all.barrier();
  }));
}

TEST_CASE("collectives: an undefined operand is named beside the call, on one rank as on two", "[parallel]") {
  const Tensor x = ones({1, 1, 4, 2}), none;
  Tensor y = ones({4}), empty;
  using Calls = std::vector<std::pair<std::string, std::function<void(const Communicator&)>>>;
  const auto all_named = [](const Calls& calls, bool sequence) {
    for (int ranks : {1, 2})
      for (const auto& [words, call] : calls)
        for (const std::string& what : errors_on_ranks(ranks, [&, f = &call](const Communicator& all) {
               std::optional<SequenceScope> scope;
               if (sequence) scope.emplace(all);
               (*f)(all);
             }))
          CHECK(what == words +
                            " is undefined (default-constructed, moved from, or a grad() that "
                            "backward() has not filled)");
  };
  all_named({{"all_reduce: x", [&](const Communicator& all) { all_reduce(none, all); }},
             {"reduce: x", [&](const Communicator& all) { reduce(none, 0, all); }},
             {"broadcast: x", [&](const Communicator& all) { broadcast(none, 0, all); }},
             {"all_gather: x", [&](const Communicator& all) { all_gather(none, 0, all); }},
             {"reduce_scatter: x", [&](const Communicator& all) { reduce_scatter(none, 0, all); }},
             {"ring_shift: x", [&](const Communicator& all) { ring_shift(none, 0, all); }},
             {"exclusive_scan: x", [&](const Communicator& all) { exclusive_scan(none, all); }},
             {"exclusive_scan: decay", [&](const Communicator& all) { exclusive_scan(none, x, all); }},
             {"exclusive_scan: state", [&](const Communicator& all) { exclusive_scan(x, none, all); }},
             {"start_all_reduce: x", [&](const Communicator& all) { start_all_reduce(empty, all); }},
             {"start_all_gather: x", [&](const Communicator& all) { start_all_gather(none, y, all); }},
             {"start_all_gather: y", [&](const Communicator& all) { start_all_gather(y, empty, all); }}},
            false);
  all_named({{"sequence_rows: x",
              [&](const Communicator&) {
                sequence_rows(none, 0, {0, 1});
              }},
             {"sequence_shift: x", [&](const Communicator&) { sequence_shift(none, 0); }},
             {"sequence_sum: x", [&](const Communicator&) { sequence_sum(none); }},
             {"sequence_cumsum: x", [&](const Communicator&) { sequence_cumsum(none, 0); }},
             {"sequence_scan: k", [&](const Communicator&) { sequence_scan(x, none, x); }},
             {"sequence_delta_scan: write", [&](const Communicator&) { sequence_delta_scan(x, x, x, none); }},
             {"sequence_mean: losses", [&](const Communicator&) { sequence_mean(none); }},
             {"sequence_attention: v", [&](const Communicator&) { sequence_attention(x, x, none); }}},
            true);
}
