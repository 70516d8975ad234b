// A public op without a row fails here, by name.
#include "support/catch.h"
#include "support/op_cases.h"
#include "support/public_ops.h"
#include "support/folders.h"

#include <map>
#include <set>

using namespace sluice::testing;

namespace {

/// Functions of ops/ that return tensors and need no row, each with the reason.
const std::map<std::string, std::string> kExempt = {};

}  // namespace

TEST_CASE("op cases: every public op has a row", "[ops][cases]") {
  std::set<std::string> have;
  for (const OpCase& row : all_cases()) have.insert(row.op);
  const auto ops = public_ops(sluice::testing::source_folder());
  CHECK(ops.size() > 80);  // else the headers were not understood
  std::set<std::string> known;
  for (const PublicOp& op : ops) {
    known.insert(op.name);
    INFO(op.name << " (ops/" << op.header << ") has no row in tests/support/cases_*.cpp");
    CHECK((have.count(op.name) || kExempt.count(op.name)));
  }
  for (const auto& [name, reason] : kExempt) {
    INFO("exempt \"" << name << "\" is no public op, or has a row");
    CHECK((known.count(name) && !have.count(name) && !reason.empty()));
  }
  for (const std::string& name : have) {
    INFO("rows for \"" << name << "\", which no header of ops/ declares");
    CHECK(known.count(name));
  }
}
