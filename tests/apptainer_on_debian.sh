#!/bin/sh
# Puts Apptainer into FOLDER on Debian 12, for the tests of the sandbox: apptainer_on_debian.sh FOLDER
#
# Debian 12 has no package of it; the unstable Debian's is made for a newer C library, so that is put beside it, and
# nothing of either is installed. Without its setuid helper, which Debian does not ship: it works for root, and for others
# where user namespaces do. Needs patchelf. FOLDER/usr/bin/apptainer is what to run.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
packages=$folder/packages
mkdir -p "$packages/lists/partial" "$packages/cache/archives/partial"
cd "$packages"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$')
echo "deb [signed-by=$keyring] $mirror sid main" >sid.list
unstable() {
  apt-get -qq -o Dir::Etc::sourcelist="$packages/sid.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$packages/lists" -o Dir::Cache="$packages/cache" -o APT::Sandbox::User=root "$@"
}
unstable update
unstable download apptainer libc6 libseccomp2 libsqlite3-0
for package in *.deb; do
  case $package in
    apptainer_*) dpkg-deb -x "$package" "$folder" ;;
    *) dpkg-deb -x "$package" libraries ;;
  esac
done
machine=$(ls "$folder/usr/lib" | grep linux-gnu)
mkdir -p "$folder/libraries"
cp -L libraries/usr/lib/"$machine"/*.so* "$folder/libraries"
loader=$(basename "$(patchelf --print-interpreter "$folder/usr/bin/apptainer")")
for program in "$folder/usr/bin/apptainer" "$folder/usr/lib/$machine/apptainer/bin/starter"; do
  patchelf --set-interpreter "$folder/libraries/$loader" --force-rpath --set-rpath "$folder/libraries" "$program"
done
# Where the two programs look for their settings and a place to mount at, once they are not in /usr.
ln -sfn ../etc "$folder/usr/etc"
ln -sfn ../../etc "$folder/usr/lib/etc"
mkdir -p "$folder/usr/var/lib/apptainer/mnt/session" "$folder/usr/lib/var/lib/apptainer/mnt/session"
rm -rf "$packages"
"$folder/usr/bin/apptainer" --version
