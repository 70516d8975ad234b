// Everything, in one include.
#pragma once
