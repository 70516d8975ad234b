// What a source file made of a page of docs/guide begins with (page.awk).
#pragma once

#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/parallel/mpi/world.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"

namespace sluice::testing {

/// What `program` writes to std::cout, run in a folder that has the project's `examples` and nothing else.
inline std::string printed_by(const std::function<void()>& program) {
  struct Place {
    std::ostringstream printed;
    std::streambuf* out = std::cout.rdbuf(printed.rdbuf());
    std::ios format{nullptr};
    std::filesystem::path folder = std::filesystem::current_path();
    Place() { format.copyfmt(std::cout), std::cout.copyfmt(std::ios(nullptr)); }  // no program sees another's boolalpha
    ~Place() { std::cout.rdbuf(out), std::cout.copyfmt(format), std::filesystem::current_path(folder); }
  };
  const TempFolder folder;
  std::filesystem::create_directory_symlink(source_folder() + "/examples", folder / "examples");
  Place place;
  std::filesystem::current_path(folder / ".");
  program();
  return place.printed.str();
}

}  // namespace sluice::testing
