// Precompiled: what nearly every test includes.
#pragma once

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>
