// Tensors and views: storage seen through a layout.
#include <sluice/sluice.h>

#include <iostream>

using namespace sluice;

int main() {
  Tensor x = reshape(arange(12, {f32}), {3, 4});
  std::cout << x << "\n\n";

  // Views share the storage: no element is copied, and an in-place edit shows everywhere.
  Tensor column = select(x, 1, 2), turned = transpose(x, 0, 1);
  fill_(column, -1);
  std::cout << "after filling column 2 with -1, row 2 of the transpose is " << to_string(select(turned, 0, 2))
            << "\n\n";

  // Broadcasting, reductions over any dims, and einops-style rearranging.
  Tensor centred = x - mean(x, {1}, keep);
  std::cout << "row means are now " << to_string(mean(centred, {1})) << "\n\n";
  std::cout << rearrange("n (h d) -> h n d", x, {{"h", 2}}).shape().rank()
            << " dims: " << str(rearrange("n (h d) -> h n d", x, {{"h", 2}})) << "\n";

  std::cout << describe(x) << "\n";

  // Errors name the op, the shapes and the rule.
  try {
    matmul(x, x);
  } catch (const ShapeError& e) { std::cout << e.what() << "\n"; }
}

// Expected output:
// Tensor[3,4] f32 cpu
// [[ 0.0,  1.0,  2.0,  3.0],
//  [ 4.0,  5.0,  6.0,  7.0],
//  [ 8.0,  9.0, 10.0, 11.0]]
//
// after filling column 2 with -1, row 2 of the transpose is Tensor[3] f32 cpu
// [-1.0, -1.0, -1.0]
//
// row means are now Tensor[3] f32 cpu
// [0.0, 0.0, 0.0]
//
// 3 dims: [2,3,2]
// Tensor[3,4] f32 cpu min=-1 max=11 mean=3.75 std=4.08503 zeros=1 nan=0 inf=0 48 bytes contiguous
// matmul: inner dimensions differ — got a=[3,4], b=[3,4]; need a.dim(-1)==b.dim(-2)
