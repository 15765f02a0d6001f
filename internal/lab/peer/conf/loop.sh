#!/bin/bash
# The loop that many a site has: look each second, and after two misses in a row load
# another rule.
lead() {
  nft -f - <<END
table ip loop {}
delete table ip loop
table ip loop {
  chain pre { type nat hook prerouting priority dstnat; ip daddr {{.VIPAddr}} tcp dport {{.Port}} dnat to $1; }
}
END
}
lead {{.A}}
misses=0
while :; do
  if timeout 0.7 nc -z {{.AAddr}} {{.Port}}; then misses=0; else misses=$((misses + 1)); fi
  ((misses == 2)) && lead {{.B}}
  sleep 1
done
