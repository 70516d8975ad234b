// Tensor: making, reading, sharing; what its errors say.
#include <sluice/core/tensor.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <functional>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {
constexpr DType kTypes[] = {f32, f64, bf16, i64, i32, boolean};
}

TEST_CASE("tensor: from lists and vectors", "[tensor]") {
  CHECK(Tensor(2.5f).item() == 2.5);
  CHECK(Tensor(2.5f).shape() == Shape{});
  Tensor row({1, 2, 3}), rows({{1, 2, 3}, {4, 5, 6}});
  CHECK(row.shape() == Shape{3});
  CHECK(rows.shape() == Shape{2, 3});
  CHECK(rows.to_vector() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(Tensor::from<int64_t>({1, 2}).dtype() == i64);
  CHECK(Tensor::from<bool>({true, false}).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(Tensor::from<double>({}, {0, 3}).numel() == 0);
  CHECK_THROWS_WITH(Tensor::from<float>({1, 2, 3}, {2, 2}), Contains("from") && Contains("3") && Contains("[2,2]"));
  CHECK_THROWS_AS(Tensor({{1, 2}, {3}}), ShapeError);
}

TEST_CASE("tensor: from_blob sees the owner's memory and says when it has done with it", "[tensor]") {
  std::vector<float> mine{1, 2, 3, 4, 5, 6};
  int released = 0;
  const auto before = memory_stats().live;
  {
    Tensor x = Tensor::from_blob(mine.data(), {2, 3}, [&] { ++released; });
    CHECK(x.data<float>() == mine.data());
    CHECK(sum(x).item() == 21);
    mine[5] = 16;
    CHECK(sum(x).item() == 31);
    fill_(x, 2);
    CHECK(mine == std::vector<float>(6, 2));
    x.requires_grad_();
    Tensor row = select(x, 0, 1), copy = clone(x);
    backward(sum(row * row));
    CHECK(x.grad().to_vector() == std::vector<float>{0, 0, 0, 4, 4, 4});
    x = Tensor();
    CHECK(released == 0);  // `row` still sees it
    row = Tensor();
    CHECK(released == 1);
    CHECK(copy.to_vector() == std::vector<float>(6, 2));
  }
  CHECK(released == 1);
  CHECK(memory_stats().live == before);
  CHECK(Tensor::from_blob(mine.data() + 1, 2).to_vector() ==
        std::vector<float>{2, 2});  // no alignment beyond the type's
  CHECK(Tensor::from_blob<int64_t>(nullptr, {0, 3}).dtype() == i64);
  CHECK_THROWS_WITH(Tensor::from_blob<float>(nullptr, {2}), "from_blob: the address is null — got shape [2]");
  CHECK_THROWS_AS(Tensor::from_blob(mine.data(), {-1}), ShapeError);
  auto* odd = reinterpret_cast<float*>(reinterpret_cast<char*>(mine.data()) + 1);
  CHECK_THROWS_WITH(Tensor::from_blob(odd, 1), Contains("no multiple of 4"));
}

TEST_CASE("tensor: every dtype goes to and from vectors of every type", "[tensor]") {
  const Doubles values{0, 1, 5, 120};
  for (DType t : kTypes) {
    INFO(name_of(t));
    Tensor x = to(Tensor::from(values), t);
    const bool b = t == boolean;
    CHECK(x.to_vector<double>() == (b ? Doubles{0, 1, 1, 1} : values));
    CHECK(x.to_vector<float>() == (b ? std::vector<float>{0, 1, 1, 1} : std::vector<float>{0, 1, 5, 120}));
    CHECK(x.to_vector<int64_t>() == (b ? std::vector<int64_t>{0, 1, 1, 1} : std::vector<int64_t>{0, 1, 5, 120}));
    CHECK(x.to_vector<int32_t>()[1] == 1);
    CHECK(x.to_vector<bool>() == std::vector<bool>{false, true, true, true});
    CHECK(static_cast<float>(x.to_vector<BFloat16>()[3]) == (b ? 1 : 120));
  }
}

TEST_CASE("tensor: item of one element, whatever the dtype and rank", "[tensor]") {
  for (DType t : kTypes) CHECK(to(ones({1, 1}), t).item() == 1);
  CHECK(select(Tensor({1, 2, 3}), 0, 2).item() == 3);  // through an offset
  CHECK_THROWS_WITH(Tensor({1, 2}).item(), Contains("item") && Contains("[2]"));
  CHECK_THROWS_AS(empty({0}).item(), ShapeError);
  CHECK(Tensor::from<int64_t>({(int64_t{1} << 53) - 1}).item() == 9007199254740991.0);
  CHECK(full({}, 0.1, {f64}).item<float>() == 0.1f);
  CHECK(Tensor(-7).item<int>() == -7);
  CHECK(Tensor(-7).item<int8_t>() == -7);
  CHECK(Tensor(1).item<bool>());
  CHECK(Tensor::from<int64_t>({INT64_MAX}).item<std::size_t>() == std::size_t{INT64_MAX});
  CHECK(Tensor::from<int64_t>({INT32_MIN}).item<int>() == INT32_MIN);
  CHECK_THROWS_WITH(Tensor::from<int64_t>({int64_t{INT32_MAX} + 1}).item<int>(),
                    "item: 2147483648 is outside [-2147483648, 2147483647]");
  CHECK_THROWS_WITH(Tensor(-1).item<unsigned>(), "item: -1 is outside [0, 4294967295]");
  CHECK_THROWS_WITH(Tensor(2).item<bool>(), "item: 2 is outside [0, 1]");
  CHECK_THROWS_WITH(Tensor(0.5).item<int>(), Contains("0.5 is no int64"));
  CHECK(Tensor::from<int64_t>({1 << 24}).item<float>() == 0x1p24f);
  CHECK_THROWS_WITH(Tensor::from<int64_t>({(1 << 24) + 1}).item<float>(), Contains("16777217 is no float"));
}

TEST_CASE("tensor: data pointers are typed and start at the first element", "[tensor]") {
  Tensor x({{1, 2, 3}, {4, 5, 6}}), last = select(x, 0, 1);
  CHECK(last.data<float>()[0] == 4);
  CHECK(last.data<float>() == x.data<float>() + 3);
  CHECK_THROWS_WITH(x.data<double>(), Contains("f32") && Contains("f64"));
  CHECK_THROWS_AS(x.mutable_data<int32_t>(), DTypeError);
  last.mutable_data<float>()[1] = 50;
  CHECK(x.to_vector()[4] == 50);
}

TEST_CASE("tensor: an undefined one says so", "[tensor]") {
  Tensor none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.requires_grad());
  CHECK(str(none) == "undefined");
  for (auto f :
       std::vector<std::function<void()>>{[&] { none.shape(); }, [&] { none.dtype(); }, [&] { none.item(); },
                                          [&] { none.to_vector(); }, [&] { none.detach(); }, [&] { exp(none); },
                                          [&] {
                                            Tensor x({1});
                                            x + none;
                                          },
                                          [&] { matmul(none, none); }, [&] { sum(none); }, [&] { reshape(none, {1}); }})
    CHECK_THROWS_AS(f(), Error);
  Tensor moved({1}), target = std::move(moved);
  CHECK_FALSE(moved.defined());
}

TEST_CASE("tensor: what a temporary says of itself outlives it", "[tensor]") {
  const Tensor x = zeros({2, 3, 4});
  const Shape &shape = transpose(x, 0, 1).shape(), &strides = transpose(x, 0, 1).strides();
  const Layout& layout = transpose(x, 0, 1).layout();
  const Tensor& leaf = zeros({2}, {f64}).requires_grad_();
  std::vector<int64_t> sizes;
  for (const int64_t n : permute(x, {2, 0, 1}).shape()) {
    const Tensor other = ones({n, 1, 1, 1, 1});  // takes the memory of a tensor that is gone
    sizes.push_back(n);
  }
  CHECK(sizes == std::vector<int64_t>{4, 2, 3});
  CHECK(shape == Shape{3, 2, 4});
  CHECK(strides == Shape{4, 12, 1});
  CHECK(layout.shape == shape);
  CHECK(leaf.dtype() == f64);
  CHECK(leaf.requires_grad());
}

TEST_CASE("tensor: dims count from both ends", "[tensor]") {
  Tensor x = zeros({2, 3, 4});
  CHECK(x.dim(-1) == 4);
  CHECK(x.dim(0) == 2);
  CHECK(x.rank() == 3);
  CHECK(x.numel() == 24);
  CHECK_THROWS_AS(x.dim(3), ShapeError);
  CHECK_THROWS_AS(x.dim(-4), ShapeError);
}

TEST_CASE("tensor: sizes that cannot be are refused before memory is asked for", "[tensor]") {
  CHECK_THROWS_AS(empty({-1}), ShapeError);
  CHECK_THROWS_AS(empty({2, -3}), ShapeError);
  CHECK_THROWS_AS(empty({INT64_MAX}), ShapeError);
  CHECK_THROWS_AS(empty({INT64_MAX / 2, INT64_MAX / 2, 4}), ShapeError);
  CHECK_THROWS_AS(empty({int64_t{1} << 32, int64_t{1} << 32, 0}), ShapeError);  // strides would overflow
  CHECK_THROWS_AS(empty({int64_t{1} << 44}, {f64}), ShapeError);
  CHECK(empty({0, 5}).numel() == 0);
  CHECK_THROWS_AS(zeros(Shape::filled(9, 1)), ShapeError);
}

TEST_CASE("tensor: an alias shares storage and version, a clone does not", "[tensor]") {
  Tensor x({1, 2, 3, 4}), a = alias(x, Layout({2}, {2}, 1)), c = clone(x);
  CHECK(a.to_vector() == std::vector<float>{2, 4});
  CHECK(a.shares_storage(x));
  CHECK_FALSE(c.shares_storage(x));
  const uint32_t v = x.version();
  fill_(a, 9);
  CHECK(x.version() == v + 1);
  CHECK(x.to_vector() == std::vector<float>{1, 9, 3, 9});
  CHECK(c.to_vector() == std::vector<float>{1, 2, 3, 4});
  CHECK_FALSE(a.is_contiguous());
  CHECK(x.is_contiguous());
}

TEST_CASE("tensor: in-place ops write exactly their view", "[tensor]") {
  auto fresh = [] { return reshape(arange(12, {f32}), {3, 4}); };
  {
    Tensor x = fresh(), column = select(x, 1, 1);
    fill_(column, -1);
    CHECK(x.to_vector() == std::vector<float>{0, -1, 2, 3, 4, -1, 6, 7, 8, -1, 10, 11});
  }
  {
    Tensor x = fresh(), t = transpose(x, 0, 1);
    copy_(t, Tensor({10, 20, 30}));  // broadcast over rows of the transpose
    CHECK(x.to_vector() == std::vector<float>{10, 10, 10, 10, 20, 20, 20, 20, 30, 30, 30, 30});
  }
  {
    Tensor x = fresh(), odd = slice(x, 1, 1, std::nullopt, 2);
    add_(odd, ones({3, 2}), 100);
    scale_(odd, 2);
    CHECK(x.to_vector() == std::vector<float>{0, 202, 2, 206, 4, 210, 6, 214, 8, 218, 10, 222});
  }
  {
    Tensor x = fresh(), up = flip(x, {0, 1});
    copy_(x, up);  // source and target overlap
    CHECK(x.to_vector() == std::vector<float>{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
  }
  {
    Tensor x = fresh(), head = narrow(x, 0, 0, 2), tail = narrow(x, 0, 1, 2);
    add_(head, tail);  // overlapping operands, by rows
    CHECK(x.to_vector() == std::vector<float>{4, 6, 8, 10, 12, 14, 16, 18, 8, 9, 10, 11});
  }
  {
    Tensor x = fresh(), head = narrow(x, 0, 0, 2), tail = narrow(x, 0, 1, 2);
    add_(tail, head);  // and the other way round: every read comes before its write
    CHECK(x.to_vector() == std::vector<float>{0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18});
  }
  {
    Tensor square({{1, 2}, {3, 4}});
    add_(square, transpose(square, 0, 1));
    CHECK(square.to_vector() == std::vector<float>{2, 5, 5, 8});
    add_(square, square);
    CHECK(square.to_vector() == std::vector<float>{4, 10, 10, 16});
  }
  Tensor x = fresh();
  CHECK_THROWS_WITH(copy_(x, Tensor({1, 2})), Contains("copy_") && Contains("[2]") && Contains("[3,4]"));
  CHECK_THROWS_WITH(add_(x, ones({4})), Contains("add_") && Contains("[4]"));
  CHECK_THROWS_AS(add_(x, ones({3, 4}, {f64})), DTypeError);
  Tensor row({1, 2});
  CHECK_THROWS_AS(copy_(row, ones({3, 2})), ShapeError);
}

TEST_CASE("tensor: errors of ops name the op and the shapes", "[tensor]") {
  Tensor a = zeros({8, 64, 32}), b = zeros({8, 48, 64});
  CHECK_THROWS_WITH(matmul(a, b), Contains("matmul") && Contains("[8,64,32]") && Contains("[8,48,64]"));
  CHECK_THROWS_WITH(a + zeros({5}), Contains("add") && Contains("[8,64,32]") && Contains("[5]"));
  CHECK_THROWS_WITH(reshape(a, {7, 7}), Contains("reshape") && Contains("[7,7]") && Contains("[8,64,32]"));
  CHECK_THROWS_WITH(sum(a, {3}), Contains("sum") && Contains("dim 3"));
  CHECK_THROWS_WITH(exp(arange(3)), Contains("exp") && Contains("i64"));
  CHECK_THROWS_WITH(a + zeros({5}, {f64}), Contains("add") && Contains("f32") && Contains("f64"));
  CHECK_THROWS_AS(zeros({1}, {f32, {DeviceKind::cuda, 99}}), DeviceError);
  CHECK_THROWS_WITH(ones({2}).requires_grad_().set_grad(ones({2}, {f32, meta})),
                    "set_grad: gradient on meta for a tensor on cpu");
  CHECK(device_named("cuda") == Device::cuda());
  CHECK(device_named("cuda:3") == Device::cuda(3));
  CHECK(device_named("meta") == meta);
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:12", "cuda:/", "CPU"})
    CHECK_THROWS_WITH(device_named(text), str("device: got \"", text, "\"; need cpu, cuda, cuda:0 … cuda:9 or meta"));
  CHECK_THROWS_WITH(dispatch_float("half", i64, []<class T>() {}), "half: needs f32 or f64 — got i64");
  CHECK(str(-5LL, '/', 5ULL) == "-5/5");
}
