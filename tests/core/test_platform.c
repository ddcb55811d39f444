/* Tests of core/platform.c: memory and files without a name, reserved space, seals, process identity. */
// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "platform.h"

#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

static char directory[] = "/tmp/shoal-test-XXXXXX";

static void path_in_directory(char *path, const char *name) {
    snprintf(path, PATH_MAX, "%s/%s", directory, name);
}

static int entries_in_directory(void) {
    DIR *dir = opendir(directory);
    CHECK(dir != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

static struct stat status_of(int fd) {
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    return st;
}

static void memory_is_private_empty_and_closes_on_exec(void) {
    int fd = shoal_memory_create();
    CHECK(fd >= 0);
    CHECK_EQUAL(status_of(fd).st_mode & 0777, 0600);
    CHECK_EQUAL(status_of(fd).st_size, 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}

static void reserve_grows_the_file_and_allocates_space(void) {
    int fd = shoal_memory_create();
    CHECK_EQUAL(shoal_reserve(fd, 0, 0), 0);
    CHECK_EQUAL(status_of(fd).st_size, 0);
    CHECK_EQUAL(shoal_reserve(fd, 0, 10000), 0);
    CHECK_EQUAL(status_of(fd).st_size, 10000);
    CHECK_EQUAL(shoal_reserve(fd, 10000, 90000), 0);
    CHECK_EQUAL(status_of(fd).st_size, 100000);
    CHECK_EQUAL(shoal_reserve(fd, 0, 50), 0); /* never shrinks */
    CHECK_EQUAL(status_of(fd).st_size, 100000);
#ifdef __linux__
    CHECK(status_of(fd).st_blocks * 512 >= 100000); /* taken, not promised */
#endif
    close(fd);
}

static void reserve_rejects_sizes_that_no_file_can_have(void) {
    int fd = shoal_memory_create();
    CHECK_EQUAL(shoal_reserve(fd, INT64_MAX, 1), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, 1, INT64_MAX), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, UINT64_MAX, 1), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, UINT64_MAX, UINT64_MAX), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, (uint64_t)1 << 63, (uint64_t)1 << 63), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, 0, UINT64_MAX), -EFBIG);
    CHECK_EQUAL(shoal_reserve(fd, 1, (uint64_t)1 << 63), -EFBIG);
    CHECK_EQUAL(status_of(fd).st_size, 0);
    close(fd);
    CHECK_EQUAL(shoal_reserve(-1, 0, 1), -EBADF);
}

static void sealed_memory_keeps_its_size_and_its_seals(void) {
    int fd = shoal_memory_create();
    CHECK_EQUAL(shoal_reserve(fd, 0, 8192), 0);
    CHECK_EQUAL(shoal_seal(fd), 0);
#ifdef __linux__
    CHECK(ftruncate(fd, 0) != 0 && errno == EPERM);
    CHECK(ftruncate(fd, 16384) != 0 && errno == EPERM);
    CHECK(shoal_reserve(fd, 8192, 1) == -EPERM);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0 && errno == EPERM); /* nobody can forbid writing later */
#endif
    CHECK_EQUAL(pwrite(fd, "x", 1, 8191), 1);
    CHECK_EQUAL(status_of(fd).st_size, 8192);
    close(fd);
}

static void reopen_gives_the_same_bytes_through_a_description_of_its_own(void) {
    char byte = 0;
    int fd = shoal_memory_create();
    CHECK_EQUAL(shoal_reserve(fd, 0, 4096), 0);
    int writer = shoal_reopen(fd, 1), reader = shoal_reopen(fd, 0);
    CHECK(writer >= 0 && reader >= 0);
    CHECK((fcntl(writer, F_GETFD) & FD_CLOEXEC) && (fcntl(reader, F_GETFD) & FD_CLOEXEC));
    CHECK_EQUAL(pwrite(writer, "s", 1, 7), 1);
    CHECK_EQUAL(pread(reader, &byte, 1, 7), 1);
    CHECK_EQUAL(byte, 's');
    CHECK(pwrite(reader, "x", 1, 7) < 0 && errno == EBADF);
    CHECK_EQUAL(lseek(writer, 9, SEEK_SET), 9);
    CHECK_EQUAL(lseek(fd, 0, SEEK_CUR), 0); /* a duplicate would share the position */
    close(reader);
    close(writer);
    close(fd);
    CHECK_EQUAL(shoal_reopen(-1, 1), -ENOENT);
}

static void a_file_has_no_name_before_it_is_linked(void) {
    char temporary[PATH_MAX], path[PATH_MAX];
    path_in_directory(path, "ring.seg");
    int fd = shoal_file_create(directory, temporary, sizeof temporary);
    CHECK(fd >= 0);
    CHECK_EQUAL(status_of(fd).st_mode & 0777, 0600);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK_EQUAL(entries_in_directory(), temporary[0] == '\0' ? 0 : 1);
    CHECK(access(path, F_OK) != 0);
    CHECK_EQUAL(pwrite(fd, "whole", 5, 0), 5);
    CHECK_EQUAL(shoal_file_link(fd, temporary, path), 0);
    CHECK_EQUAL(entries_in_directory(), 1);
    struct stat st;
    CHECK(stat(path, &st) == 0);
    CHECK(st.st_ino == status_of(fd).st_ino && st.st_size == 5);
    close(fd);
    unlink(path);
}

static void a_name_that_is_taken_is_refused_and_keeps_its_file(void) {
    char first_temporary[PATH_MAX], temporary[PATH_MAX], path[PATH_MAX];
    path_in_directory(path, "ring.seg");
    int first = shoal_file_create(directory, first_temporary, sizeof first_temporary);
    int second = shoal_file_create(directory, temporary, sizeof temporary);
    CHECK(first >= 0 && second >= 0);
    CHECK_EQUAL(shoal_file_link(first, first_temporary, path), 0);
    CHECK_EQUAL(shoal_file_link(second, temporary, path), -EEXIST);
    struct stat st;
    CHECK(stat(path, &st) == 0 && st.st_ino == status_of(first).st_ino);
    unlink(path);
    CHECK_EQUAL(shoal_file_link(second, temporary, path), 0); /* a refused file can still be linked */
    unlink(path);
    close(first);
    close(second);
    CHECK_EQUAL(entries_in_directory(), 0);
}

static void a_temporary_name_gives_way_to_the_real_one_only_on_success(void) {
    char temporary[PATH_MAX], path[PATH_MAX];
    path_in_directory(temporary, ".shoal-XXXXXX");
    path_in_directory(path, "ring.seg");
    int fd = mkstemp(temporary), other = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(fd >= 0 && other >= 0);
    CHECK_EQUAL(shoal_file_link(fd, temporary, path), -EEXIST);
    CHECK(access(temporary, F_OK) == 0);
    unlink(path);
    CHECK_EQUAL(shoal_file_link(fd, temporary, path), 0);
    CHECK(access(temporary, F_OK) != 0 && access(path, F_OK) == 0);
    unlink(path);
    close(fd);
    close(other);
}

static void a_file_needs_a_directory_that_exists(void) {
    char temporary[PATH_MAX] = "left from before", path[PATH_MAX];
    path_in_directory(path, "missing");
    CHECK_EQUAL(shoal_file_create(path, temporary, sizeof temporary), -ENOENT);
    CHECK_EQUAL(temporary[0], '\0');
}

static void living_process_has_one_start_time_with_any_name(void) {
    uint64_t start = shoal_process_start(getpid());
    CHECK(start != 0);
    CHECK(shoal_process_start(getpid()) == start);
#ifdef __linux__
    CHECK(prctl(PR_SET_NAME, "a) Z 1 (b 2 3") == 0);
    CHECK(shoal_process_start(getpid()) == start);
#endif
}

static void ended_process_has_no_start_time_reaped_or_not(void) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        close(ready[1]);
        _exit(read(ready[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ready[0]);
    CHECK(shoal_process_start(child) != 0);
    close(ready[1]); /* lets it end */
    siginfo_t info;
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    CHECK_EQUAL(shoal_process_start(child), 0);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK_EQUAL(shoal_process_start(child), 0);
}

static void invalid_pid_has_no_start_time(void) {
    CHECK_EQUAL(shoal_process_start(0), 0);
    CHECK_EQUAL(shoal_process_start(-1), 0);
    CHECK_EQUAL(shoal_process_start(INT32_MAX), 0);
    CHECK_EQUAL(shoal_process_start((int64_t)INT32_MAX + 1), 0);
    CHECK_EQUAL(shoal_process_start(((int64_t)1 << 32) + getpid()), 0); /* not cut to 32 bits */
    CHECK_EQUAL(shoal_process_start(INT64_MIN), 0);
}

static void the_boot_id_is_stable_and_agrees_with_the_kernel(void) {
    uint8_t once[16], again[16];
    memset(once, 0xab, sizeof once);
    memset(again, 0xcd, sizeof again);
    shoal_boot_id(once);
    shoal_boot_id(again);
    CHECK(memcmp(once, again, sizeof once) == 0);
#ifdef __linux__
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL)
        return;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        CHECK(fscanf(file, "%2x", &byte) == 1);
        CHECK_EQUAL(once[i], byte);
        if (i == 3 || i == 5 || i == 7 || i == 9)
            CHECK_EQUAL(fgetc(file), '-');
    }
    fclose(file);
#endif
}

static void huge_pages_are_never_an_error(void) {
    uint64_t size = 4 << 20;
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0);
    CHECK(base != MAP_FAILED);
    CHECK_EQUAL(shoal_huge_pages(base, 4096, 1), 0);
    CHECK_EQUAL(shoal_huge_pages(base, size, 0), 0);
    CHECK_EQUAL(shoal_huge_pages(base, size, 1), 0);
    munmap(base, size);
}

static void name_directory_exists(void) {
    struct stat st;
    CHECK(stat(shoal_name_directory(), &st) == 0 && S_ISDIR(st.st_mode));
}

int main(void) {
    CHECK(mkdtemp(directory) != NULL);
    RUN(memory_is_private_empty_and_closes_on_exec);
    RUN(reserve_grows_the_file_and_allocates_space);
    RUN(reserve_rejects_sizes_that_no_file_can_have);
    RUN(sealed_memory_keeps_its_size_and_its_seals);
    RUN(reopen_gives_the_same_bytes_through_a_description_of_its_own);
    RUN(a_file_has_no_name_before_it_is_linked);
    RUN(a_name_that_is_taken_is_refused_and_keeps_its_file);
    RUN(a_temporary_name_gives_way_to_the_real_one_only_on_success);
    RUN(a_file_needs_a_directory_that_exists);
    RUN(living_process_has_one_start_time_with_any_name);
    RUN(ended_process_has_no_start_time_reaped_or_not);
    RUN(invalid_pid_has_no_start_time);
    RUN(the_boot_id_is_stable_and_agrees_with_the_kernel);
    RUN(huge_pages_are_never_an_error);
    RUN(name_directory_exists);
    rmdir(directory);
    return 0;
}
