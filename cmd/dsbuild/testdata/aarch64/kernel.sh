#!/bin/sh
# Compiles a small kernel for aarch64 with pages of 64 KiB, as systems of Grace use, from Debian's sources into FOLDER/Image, for the
# machine `virt` of qemu. Takes five minutes on two cores. If it is there already, it stays.
#
# usage: kernel.sh FOLDER      CC: the compiler; flex, bison, bc, make and xz are on PATH
set -eu
[ ! -e "$1/Image" ] || exit 0
config=$(dirname "$(realpath "$0")")/kernel.config
rm -rf "$1" && mkdir -p "$1/part" && cd "$1/part"
apt-get -q download linux-source-6.1
dpkg -x linux-source-6.1_*.deb .
tar -xJf usr/src/linux-source-6.1.tar.xz
cd linux-source-6.1
make="make ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- CC=$CC"
$make KCONFIG_ALLCONFIG="$config" allnoconfig
$make -j "$(nproc)" Image
mv arch/arm64/boot/Image ../../Image
rm -rf ../../part
