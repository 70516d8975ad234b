// RngLog: what a stretch of code drew, and from where.
#include <sluice/core/number/random.h>

#include "support/catch.h"

#include <memory>
#include <optional>

using namespace sluice;

TEST_CASE("RngLog repeats what was drawn", "[random]") {
  Rng a(1), b(2), unused(3);
  a.reserve(5);
  auto segment = [&] { return std::pair(uniform({8}, 0, 1, a).to_vector(), bernoulli({8}, 0.5, b).to_vector()); };
  RngLog tape;
  std::optional<RngLog::Record> on(tape);
  const auto first = segment();
  on.reset();
  a.reserve(7);  // not recorded
  const uint64_t later_a = a.offset(), later_b = b.offset();
  for (int i = 0; i < 2; ++i) {
    RngLog::Replay replay(tape);
    CHECK(a.offset() == 5);
    CHECK(segment() == first);
  }
  CHECK((a.offset() == later_a && b.offset() == later_b && unused.offset() == 0));

  RngLog of_setting;
  on.emplace(of_setting);
  b.set_state(9, 3);
  on.reset();
  b.reserve(100);
  {
    RngLog::Replay replay(of_setting);
    CHECK((b.seed() == 2 && b.offset() == later_b));
    b.set_state(9, 3);
  }
  CHECK((b.seed() == 9 && b.offset() == 103));

  Rng moved = std::move(a);  // the tape follows it
  RngLog::Replay replay(tape);
  CHECK(moved.offset() == 5);
}

TEST_CASE("RngLog nests, and outlives its Rngs", "[random]") {
  RngLog outer, inner;
  auto rng = std::make_unique<Rng>(4);
  {
    RngLog::Record on_outer(outer);
    rng->reserve(1);
    RngLog::Record on_inner(inner);
    rng->reserve(2);
  }
  {
    RngLog::Replay again(outer);
    CHECK(rng->offset() == 0);
    RngLog::Replay part(inner);
    CHECK(rng->offset() == 1);
  }
  CHECK(rng->offset() == 3);
  RngLog only_inner, around;
  Rng other(6);
  {
    RngLog::Record on_outer(around);
    {
      RngLog::Record on_inner(only_inner);
      rng->reserve(1);
    }
    RngLog::Replay hidden(inner);  // what a replay draws is no new use
    other.reserve(1);
  }
  {
    RngLog::Replay again(around);
    CHECK(rng->offset() == 3);  // reported through the inner tape
    CHECK(other.offset() == 1);
  }
  rng.reset();
  RngLog::Replay harmless(outer);
}

TEST_CASE("random: streams of a recording give each replay the numbers that the same work would draw", "[random]") {
  const auto work = [](Rng& a, Rng& b) {
    Tensor x = uniform({5}, 0, 1, a), y = normal({3}, 0, 1, b);
    return std::vector<Tensor>{x, y, bernoulli({9}, 0.5, a)};
  };
  Rng a(1), b(2), twin_a(1), twin_b(2);
  uniform({7}, 0, 1, a), uniform({7}, 0, 1, twin_a);
  const uint64_t before = a.offset();
  RngLog streams;
  {
    RngLog::Record on(streams, cpu);
    work(a, b);
    CHECK(a.offset() > before);
  }
  CHECK((a.offset() == before && b.offset() == 0));
  streams.check();
  CHECK(streams.places() == std::vector<uint64_t>{1, 0, 2, 0});
  for (uint64_t replay = 1; replay <= 3; ++replay) {
    work(twin_a, twin_b);
    streams.advance();
    CHECK((a.offset() == twin_a.offset() && b.offset() == twin_b.offset()));
    CHECK(streams.places() == std::vector<uint64_t>{1, replay * 5, 2, replay});
  }
  CHECK(streams.intact());
  b = Rng(3);  // another state: the recording draws from the one that it saw
  CHECK(!streams.intact());
}

TEST_CASE("random: a recording numbers its streams and knows what it may not repeat", "[random]") {
  Rng a(1), b(2);
  RngLog streams;
  CHECK(a.draw(1, cpu).stream == -1);
  {
    RngLog::Record on(streams, cpu);
    RngLog tape;
    {
      RngLog::Record noted(tape);
      CHECK(a.draw(2, cpu).stream == 0);
      CHECK(b.draw(1, cpu).stream == 1);
    }
    {
      RngLog::Replay again(tape);  // the same blocks once more: they are taken once
      const RngBlocks same = a.draw(2, cpu);
      CHECK((same.stream == 0 && same.first == 1));
    }
    CHECK(a.draw(1, cpu).first == 3);
    CHECK_THROWS_WITH(a.draw(1, meta), Contains("on meta") && Contains("cannot be recorded"));
    {
      RngLog within;
      RngLog::Record inner(within, cpu);
      CHECK(b.draw(1, cpu).stream == 0);
    }
  }
  streams.check();
  streams.advance();
  CHECK(a.offset() == 4);

  RngLog moved;
  {
    RngLog::Record on(moved, cpu);
    a.draw(1, cpu);
    a.set_state(9, 0);
    a.draw(1, cpu);
  }
  CHECK_THROWS_WITH(moved.check(), Contains("set to another place"));
  RngLog lost;
  {
    RngLog::Record on(lost, cpu);
    Rng short_lived(4);
    short_lived.draw(1, cpu);
  }
  CHECK_THROWS_WITH(lost.check(), Contains("made and lost"));
}
