/* limit PID RESOURCE MOST: a limit of another process of the same account, by its number in <bits/resource.h>. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/resource.h>

int main(int count, char **words) {
    if (count != 4) return 2;
    struct rlimit most = {strtoul(words[3], NULL, 10), strtoul(words[3], NULL, 10)};
    return prlimit(atoi(words[1]), atoi(words[2]), &most, NULL) != 0;
}
