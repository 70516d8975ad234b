// The ops that most files use: making, viewing and joining tensors, arithmetic, reductions, products.
#pragma once

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>
