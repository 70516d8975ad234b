// Where gdb stops for gdb.sh.
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;

[[gnu::noinline]] void stop(const Tensor (&x)[9], Shape shape) { asm volatile("" : : "r"(&x), "r"(&shape) : "memory"); }

int main() {
  Tensor x = Tensor({{1, 2, 3}, {4, 5, -6.5}}).requires_grad_();
  const Tensor all[] = {square(x),
                        transpose(x, 0, 1),
                        Tensor(),
                        gt(x, 2.0),
                        to(x.detach(), bf16),
                        empty({2, 3}, {f64, meta}),
                        zeros({0, 3}, {f64}),
                        slice(arange(0, 100), 0, 5, 100, 10),
                        expand(Tensor(0.5f), {2, int64_t{1} << 40})};
  stop(all, {2, 0, 3});
}
