/* Calls of the API, each with the number that joins it to the work that it caused. */
#include "null.h"

ng_activity_t ng_activity;
static u32 last_correlation;
static __thread u32 correlation;
static __thread int depth;

u32 ng_correlation(void) {
    return correlation ? correlation : __sync_add_and_fetch(&last_correlation, 1);
}

/* Calls that our own libraries make of each other belong to the outermost, as CUPTI has it. */
ng_api ng_api_enter(ng_api_kind kind, int cbid) {
    ng_api api = {.kind = kind, .cbid = cbid};
    if (depth++) return api;
    correlation = __sync_add_and_fetch(&last_correlation, 1);
    if (!ng_activity.on) return api;
    api.is_on = 1;
    api.correlation = correlation;
    api.start = ng_activity.stamp();
    return api;
}

void ng_api_leave(ng_api *api) {
    if (api->is_on && ng_activity.on && ng_activity.api) ng_activity.api(api, ng_activity.stamp());
    if (!--depth) correlation = 0;
}
