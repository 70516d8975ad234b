#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_gau_rows(RowList& list) { gau_rows(list); }

}  // namespace sluice::detail
