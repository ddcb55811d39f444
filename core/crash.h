/* Crash reports of a process that runs code it does not trust: which signal, in which call, at which address
 * of which library. The parent reads the report and looks the lines up; this process can no longer.
 *
 *   signal 11
 *   call step
 *   frame 11a9 /path/of/library.so      the innermost first; the offset is what `addr2line` takes
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CRASH_H
#define SHOAL_CRASH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on a call that takes too long (shoal_crash_watch) writes a report to `fd` and ends the process by
 * SIGALRM; with `crashes`, so do SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, which then end it as usual. Of
 * this thread's calls even an overflow of the stack is reported. 0 or -errno. */
int shoal_crash_report_to(int fd, int crashes);

/* Names the call that begins now and limits it to `seconds`; 0 seconds: it has returned. Does nothing before
 * shoal_crash_report_to. */
void shoal_crash_watch(const char *call, uint32_t seconds);

#ifdef __cplusplus
}
#endif
#endif
