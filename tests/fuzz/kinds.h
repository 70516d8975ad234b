// The kinds of draws that sluice_fuzz makes. A kind is a function: it draws one case, tries it and says what was wrong.
#pragma once

#include "fuzz/draw.h"

#include <map>

namespace sluice::testing {

/// What draws tell the loop in main.cpp.
struct Report {
  std::map<std::string, long> counts;  // by what is counted: "calls", "errors"
  long failures = 0;
  std::string op;  // the only op wanted; "" for all

  /// Names what is tried, for the report of a crash.
  void at(const std::string& what);
  /// A finding.
  void wrong(const Draw& draw, const std::string& what);
};

struct Kind {
  const char* name;
  void (*draw)(Draw&, Report&);
  bool (*ready)() = nullptr;          // whether the kind can begin; says why not
  void (*finish)(Report&) = nullptr;  // what only all draws together show
};

void draw_op(Draw& draw, Report& report);
bool ops_are_covered();
void finish_ops(Report& report);
void draw_graph(Draw& draw, Report& report);
void draw_file(Draw& draw, Report& report);
void draw_memory_limit(Draw& draw, Report& report);

/// Whether a kernel did on the emulated GPU what a real one leaves undefined, or failed on a real one.
bool kernel_failed(const Error& e);

}  // namespace sluice::testing
