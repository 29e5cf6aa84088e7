/* What the files of the runtime share. */
#pragma once
#include "../core/null.h"
#include <cupti_runtime_cbid.h>

/* A broken context answers everything with the error that broke it. */
#define NOT_BROKEN do { if (ng_broken()) return ng_broken(); } while (0)
