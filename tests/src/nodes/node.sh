# The first process of a machine: process 1 of its namespace, with a network and mounts of its own. All parts of the
# cluster are its children, and end with it.
set -u
cd "$FOLDER"

until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via 10.213.0.1
sysctl -qw net.ipv4.ip_forward=1
sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null

# What the node keeps beside its folder is its own, and gone with it.
mkdir -p /var/log/containers /var/lib/cni
mount -t tmpfs none /var/log/containers
mount -t tmpfs none /var/lib/cni
: >resolv.conf
mount --bind resolv.conf /etc/resolv.conf

part() {
  local name=$1
  shift
  "$@" >>"$name.log" 2>&1 </dev/null &
}

part containerd containerd --config containerd.toml
# Nothing here has to outlive a power cut, and a killed process loses nothing that it has written.
part etcd "$NODE" etcd --data-dir etcd --unsafe-no-fsync
part kube-apiserver "$NODE" kube-apiserver --etcd-servers http://127.0.0.1:2379 \
  --bind-address "$ADDRESS" --advertise-address "$ADDRESS" --secure-port 6443 --cert-dir certificates \
  --service-account-key-file service-accounts.pub --service-account-signing-key-file service-accounts.key \
  --service-account-issuer https://kubernetes.default.svc --token-auth-file tokens.csv --authorization-mode RBAC \
  --service-cluster-ip-range "$SERVICES.0/24" --allow-privileged --kubelet-preferred-address-types InternalIP \
  --requestheader-client-ca-file front-proxy-ca.crt --requestheader-allowed-names front-proxy-client \
  --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
  --requestheader-extra-headers-prefix X-Remote-Extra- --proxy-client-cert-file front-proxy.crt \
  --proxy-client-key-file front-proxy.key

until [ -S containerd.sock ]; do sleep 0.1; done
for archive in $ARCHIVES; do
  ctr --address "$FOLDER/containerd.sock" --namespace k8s.io images import "$archive" >>import.log 2>&1
done
until "$NODE" kubectl --kubeconfig kubeconfig get --raw /readyz >/dev/null 2>&1; do sleep 0.1; done

part kube-controller-manager "$NODE" kube-controller-manager --kubeconfig kubeconfig \
  --service-account-private-key-file service-accounts.key --use-service-account-credentials=true --leader-elect=false \
  --root-ca-file certificates/apiserver.crt
part kube-scheduler "$NODE" kube-scheduler --kubeconfig kubeconfig --leader-elect=false
part kubelet "$NODE" kubelet --kubeconfig kubeconfig --config kubelet.yaml --root-dir "$FOLDER/kubelet" \
  --cert-dir kubelet-certificates --hostname-override node --node-ip "$ADDRESS"
part kube-proxy "$NODE" kube-proxy --config kube-proxy.yaml

# Process 1 takes in the orphans of all containers.
while :; do wait -n || sleep 0.2; done
