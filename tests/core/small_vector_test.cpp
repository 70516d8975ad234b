// SmallVector against std::vector, with elements that count themselves.
#include <sluice/core/memory/small_vector.h>

#include "support/approx.h"
#include "support/catch.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace sluice;

namespace {

struct Counted {
  static inline int live = 0;
  std::string value;  // not trivially movable, and longer than the small-string buffer
  Counted() : Counted(0) {}
  explicit Counted(int v) : value(std::to_string(v) + std::string(40, '.')) { ++live; }
  Counted(const Counted& o) : value(o.value) { ++live; }
  Counted(Counted&& o) noexcept : value(std::move(o.value)) { ++live; }
  Counted& operator=(const Counted&) = default;
  Counted& operator=(Counted&&) = default;
  ~Counted() { --live; }
  bool operator==(const Counted& o) const { return value == o.value; }
};
using Small = SmallVector<Counted, 3>;
using Plain = std::vector<Counted>;

bool same(const Small& a, const Plain& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end()) && a.size() == b.size();
}

}  // namespace

TEST_CASE("small vector: random operations agree with std::vector", "[small_vector]") {
  {
    testing::Rand r(1);
    Small a[2];
    Plain b[2];
    for (int step = 0; step < 20000; ++step) {
      const auto i = static_cast<std::size_t>(r.below(2)), j = 1 - i;
      const int v = static_cast<int>(r.below(1000));
      switch (r.below(10)) {
        case 0:
        case 1:
        case 2: a[i].emplace_back(v), b[i].emplace_back(v); break;
        case 3:
          if (!b[i].empty()) a[i].pop_back(), b[i].pop_back();
          break;
        case 4: {
          auto n = static_cast<std::size_t>(r.below(8));
          a[i].resize(n), b[i].resize(n);
          break;
        }
        case 5: a[i] = a[j], b[i] = b[j]; break;
        case 6:
          a[i] = std::move(a[j]), b[i] = std::move(b[j]);
          a[j].clear(), b[j].clear();
          break;
        case 7: {
          Small c(std::move(a[i]));
          Small d(c);
          a[i] = std::move(d);
          break;
        }
        case 8:
          if (!b[i].empty()) a[i].push_back(a[i][0]), b[i].push_back(Counted(b[i][0]));
          break;  // an element of its own
        case 9:
          if (r.below(4) == 0) a[i].clear(), b[i].clear();
          else a[i] = Small(b[i].begin(), b[i].end());
          break;
      }
      REQUIRE(same(a[0], b[0]));
      REQUIRE(same(a[1], b[1]));
    }
  }
  CHECK(Counted::live == 0);
}

TEST_CASE("small vector: assigning to itself keeps the elements", "[small_vector]") {
  for (int n : {0, 2, 3, 4, 20}) {
    Small a;
    Plain b;
    for (int i = 0; i < n; ++i) a.emplace_back(i), b.emplace_back(i);
    Small& alias = a;
    a = alias;
    CHECK(same(a, b));
    a = std::move(alias);
    CHECK(same(a, b));
  }
  CHECK(Counted::live == 0);
}

TEST_CASE("small vector: a moved-from one is empty and usable", "[small_vector]") {
  for (int n : {2, 9}) {
    Small a;
    for (int i = 0; i < n; ++i) a.emplace_back(i);
    Small b = std::move(a);
    CHECK(a.empty());
    CHECK(b.size() == static_cast<std::size_t>(n));
    a.emplace_back(5);
    CHECK(a.back() == Counted(5));
    CHECK(b[0] == Counted(0));
  }
}

TEST_CASE("small vector: move-only and over-aligned elements", "[small_vector]") {
  SmallVector<std::unique_ptr<int>, 2> owners;
  for (int i = 0; i < 10; ++i) owners.push_back(std::make_unique<int>(i));
  auto moved = std::move(owners);
  CHECK(*moved[9] == 9);
  struct alignas(64) Wide {
    double x[8];
  };
  SmallVector<Wide, 2> wide;
  for (int i = 0; i < 9; ++i) {
    wide.emplace_back();
    for (auto& w : wide) REQUIRE(reinterpret_cast<std::uintptr_t>(&w) % 64 == 0);
  }
}

TEST_CASE("small vector: a throwing constructor leaks nothing and leaves the vector whole", "[small_vector]") {
  struct Fussy {
    Counted c;
    explicit Fussy(int v) : c(v) {
      if (v == 13) throw v;
    }
    Fussy() : Fussy(0) {}
  };
  {
    SmallVector<Fussy, 2> v;
    for (int i = 0; i < 5; ++i) v.emplace_back(i);
    CHECK_THROWS_AS(v.emplace_back(13), int);
    CHECK(v.size() == 5);
    SmallVector<Fussy, 2> full;
    full.emplace_back(1), full.emplace_back(2);
    CHECK_THROWS_AS(full.emplace_back(13), int);  // at the moment it would grow
    CHECK(full.size() == 2);
    CHECK(full[1].c == Counted(2));
  }
  CHECK(Counted::live == 0);
}

TEST_CASE("small vector: a constructor that throws leaks nothing", "[small_vector]") {
  static int left = 0;
  struct Fussy {
    Counted c;
    Fussy() { check(); }
    Fussy(const Fussy& o) : c(o.c) { check(); }
    Fussy(Fussy&&) noexcept = default;
    static void check() {
      if (left-- == 0) throw 1;
    }
  };
  using Vector = SmallVector<Fussy, 2>;
  left = 100;
  {
    const Fussy three[3];
    const Vector whole(three, three + 3);
    const int live = Counted::live;
    const std::pair<const char*, std::function<void()>> makers[] = {
        {"copy", [&] { Vector v(whole); }},
        {"range", [&] { Vector v(three, three + 3); }},
        {"size", [] { Vector v(3); }},
        {"list",
         [&] {
           Vector v({three[0], three[1], three[2]});
         }},
    };
    for (const auto& [name, make] : makers) {
      INFO(name);
      left = name == std::string("list") ? 5 : 2;  // the list has copies of its own
      CHECK_THROWS_AS(make(), int);
      CHECK(Counted::live == live);
    }
  }
  CHECK(Counted::live == 0);
}
