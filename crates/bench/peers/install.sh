#!/bin/bash
# Installs what the comparison needs on Debian 12 and its relatives: the peers, libfuse3 (to build the do-nothing file
# system), a C compiler, git and strace. Run as root. Package scripts are kept from starting the daemons: the benchmark
# starts its own, under a folder of its own.
set -euo pipefail

if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi

apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    gcc libc6-dev libfuse3-dev pkg-config fuse3 iproute2 \
    glusterfs-server glusterfs-client \
    moosefs-master moosefs-chunkserver moosefs-client moosefs-cli \
    ceph-mon ceph-mgr ceph-osd ceph-mds ceph-fuse ceph-common \
    sshfs openssh-server openssh-client \
    nfs-ganesha nfs-ganesha-vfs rpcbind user-mode-linux uml-utilities kmod \
    git strace
