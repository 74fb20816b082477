// Uses files and directories through the C library, in the directory named by its first argument.
// Every line has an operation and its result.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *root;

static const char *in(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void say(const char *what, int result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok");
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void list(const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, by_name);
    if (count < 0) {
        say("scandir", count);
        return;
    }
    printf("entries:");
    for (int i = 0; i < count; i++) {
        printf(" %s%s", entries[i]->d_name, entries[i]->d_type == DT_DIR ? "/" : "");
        free(entries[i]);
    }
    printf("\n");
    free(entries);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    root = argv[1];

    FILE *file = fopen(in("text"), "w");
    say("fopen for writing", file ? 0 : -1);
    if (!file) return 1;
    for (int i = 0; i < 1000; i++) fprintf(file, "line %d\n", i);
    say("fclose", fclose(file));

    file = fopen(in("text"), "r+");
    char line[100];
    fseek(file, -9, SEEK_END);
    say("fgets", fgets(line, sizeof line, file) ? 0 : -1);
    printf("last line: %sposition: %ld\n", line, ftell(file));
    rewind(file);
    fputs("LINE", file);
    fclose(file);

    file = fopen(in("text"), "a");
    fputs("appended\n", file);
    fclose(file);
    struct stat status;
    say("stat", stat(in("text"), &status));
    printf("size: %lld, regular: %d\n", (long long)status.st_size, S_ISREG(status.st_mode));

    int fd = open(in("text"), O_RDONLY);
    char parts[2][5] = {"", ""};
    struct iovec vectors[2] = {{parts[0], 4}, {parts[1], 4}};
    printf("readv: %zd '%s' '%s'\n", readv(fd, vectors, 2), parts[0], parts[1]);
    char word[8] = "";
    printf("pread: %zd '%s'\n", pread(fd, word, 4, 7), word);
    printf("lseek: %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    say("write to a file open for reading", write(fd, "x", 1));
    close(fd);
    say("read of a closed descriptor", read(fd, word, 1));

    say("mkdir", mkdir(in("sub"), 0755));
    say("mkdir again", mkdir(in("sub"), 0755));
    say("rename", rename(in("text"), in("sub/moved")));
    say("stat of the old name", stat(in("text"), &status));
    say("link", link(in("sub/moved"), in("linked")));
    say("symlink", symlink("sub/moved", in("symbolic")));
    char contents[100] = "";
    say("readlink", readlink(in("symbolic"), contents, sizeof contents - 1));
    printf("contents: %s\n", contents);
    say("lstat", lstat(in("symbolic"), &status));
    printf("symbolic link: %d\n", S_ISLNK(status.st_mode));
    say("truncate", truncate(in("linked"), 5));
    say("stat through the link", stat(in("symbolic"), &status));
    printf("size: %lld\n", (long long)status.st_size);
    struct timespec times[2] = {{1000, 5}, {2000, 6}};
    say("utimensat", utimensat(AT_FDCWD, in("linked"), times, 0));
    stat(in("linked"), &status);
    printf("modified: %lld.%ld\n", (long long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    list(root);
    say("rmdir of a directory that is not empty", rmdir(in("sub")));
    say("open of a directory for writing", open(in("sub"), O_WRONLY));
    say("open with O_EXCL", open(in("linked"), O_CREAT | O_EXCL | O_WRONLY, 0644));
    say("open with O_NOFOLLOW", open(in("symbolic"), O_RDONLY | O_NOFOLLOW));

    // Many entries, so that they are read in parts.
    for (int i = 0; i < 300; i++) {
        char name[100];
        snprintf(name, sizeof name, "sub/a-file-with-a-rather-long-name-%03d", i);
        fclose(fopen(in(name), "w"));
    }
    DIR *directory = opendir(in("sub"));
    int count = 0;
    while (readdir(directory)) count++;
    rewinddir(directory);
    int again = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        again++;
        if (entry->d_name[0] == 'a') unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    printf("readdir: %d, then %d\n", count, again);

    say("unlink", unlink(in("sub/moved")));
    say("rmdir", rmdir(in("sub")));
    say("stat of a link that leads nowhere", stat(in("symbolic"), &status));
    unlink(in("symbolic"));
    unlink(in("linked"));
    list(root);

    say("open outside", open(in("../outside"), O_RDONLY));
    say("open of an absolute path", open("/etc/passwd", O_RDONLY));
    say("symlink to the outside", symlink("/etc/passwd", in("leak")));
    say("open through a link to the outside", open(in("escape"), O_RDONLY));
    return 0;
}
