#!/bin/bash
# Two clusters on a machine with Docker, connected by the commands of the README: docs/kind.md.
set -euo pipefail
cd "$(dirname "$0")/.."
CALICO=https://raw.githubusercontent.com/projectcalico/calico/v3.31.0/manifests/calico.yaml

tool=kind down=
for flag; do
  case $flag in
    --k3d | --minikube) tool=${flag#--} ;;
    --down) down=1 ;;
    *) echo "use: tools/quickstart.sh [--k3d | --minikube] [--down]" >&2; exit 1 ;;
  esac
done

# A cluster without a CNI, with subnets of its own, in the Docker network that it shares with the other.
create() {
  local c=$1 pods=10.${1#c}.0.0/16 services=10.10${1#c}.0.0/16
  case $tool in
    kind) kind create cluster --name "$c" --config - <<EOC ;;
{kind: Cluster, apiVersion: kind.x-k8s.io/v1alpha4,
 networking: {disableDefaultCNI: true, podSubnet: $pods, serviceSubnet: $services}}
EOC
    k3d) k3d cluster create "$c" --network semaphore --no-lb --k3s-arg '--flannel-backend=none@server:*' \
      --k3s-arg '--disable-network-policy@server:*' --k3s-arg '--disable=servicelb,traefik@server:*' \
      --k3s-arg "--cluster-cidr=$pods@server:*" --k3s-arg "--service-cidr=$services@server:*" ;;
    minikube) minikube start -p "$c" --driver=docker --container-runtime=containerd --network=semaphore --cni=false \
      --extra-config="kubeadm.pod-network-cidr=$pods" --service-cluster-ip-range="$services" ;;
  esac
  [ "$tool" = minikube ] || kubectl config rename-context "$tool-$c" "$c"
  curl -fsSL "$CALICO" | sed "s|# - name: CALICO_IPV4POOL_CIDR|- name: CALICO_IPV4POOL_CIDR|
    s|#   value: \"192.168.0.0/16\"|  value: \"$pods\"|" | kubectl --context "$c" apply -f -
  kubectl --context "$c" -n kube-system rollout status daemonset/calico-node --timeout=5m
}

load() {
  case $tool in
    kind) kind load image-archive "$2" --name "$1" ;;
    k3d) k3d image import "$2" -c "$1" ;;
    minikube) minikube -p "$1" image load "$2" ;;
  esac
}

# Both clusters are in one network, so each has to say which addresses are its own; no release has the image yet.
own() {
  echo "--cluster $1 --image ghcr.io/kube-semaphore/semaphore:$version --node-subnets $(kubectl --context "$1" get nodes \
    -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')/32"
}

if [ -n "$down" ]; then
  for c in c1 c2; do
    case $tool in
      kind) kind delete cluster --name $c ;;
      k3d) k3d cluster delete $c ;;
      minikube) minikube delete -p $c ;;
    esac
  done
  exit
fi

make build image
PATH=$PWD/bin:$PATH
version=$(semaphorectl version)
for c in c1 c2; do
  create $c
  load $c "bin/image/semaphore-$version.tar"
done

# shellcheck disable=SC2046 # flags
{
  semaphorectl install --context c1 --components own-names $(own c1)
  semaphorectl install --context c2 --components own-names $(own c2)
}
semaphorectl link --context c1 --context c2 --dns --yes
timeout 120 bash -c 'until semaphorectl status --context c1 --context c2; do sleep 5; done'
semaphorectl check --traffic --context c1 --context c2
