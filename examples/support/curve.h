// Curves are the library's.
#pragma once

#include <sluice/layers/train/curve.h>
