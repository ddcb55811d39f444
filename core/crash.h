/* Crash reports of a process that runs untrusted code: the signal, the call, and the address in the library.
 * The parent reads the report and finds the source lines.
 *
 *   signal 11
 *   call step
 *   frame 11a9 /path/of/library.so      innermost first; the offset is for `addr2line`
 */
// SPDX-License-Identifier: MIT
#ifndef SHOAL_CRASH_H
#define SHOAL_CRASH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on a call that takes too long (shoal_crash_watch) writes a report to `fd` and ends the process by
 * SIGALRM. With `crashes`, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT also write a report before they end
 * it. In this thread even a stack overflow is reported. Returns 0 or -errno. */
int shoal_crash_report_to(int fd, int crashes);

/* Names the call that begins now and limits it to `seconds`; 0 seconds means that it has returned. Does
 * nothing before shoal_crash_report_to. */
void shoal_crash_watch(const char *call, uint32_t seconds);

#ifdef __cplusplus
}
#endif
#endif
