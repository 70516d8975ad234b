// The version of the library. A minor version may break programs before 1.0; CHANGELOG.md says what is new.
#pragma once

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 2
#define SLUICE_VERSION_PATCH 0
/// For #if SLUICE_VERSION >= 200, which is 0.2.0.
#define SLUICE_VERSION (SLUICE_VERSION_MAJOR * 10000 + SLUICE_VERSION_MINOR * 100 + SLUICE_VERSION_PATCH)
