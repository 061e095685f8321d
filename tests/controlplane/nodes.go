//go:build nodes

// With the tag `nodes`, what a real node needs is in the binary too.
package main

import (
	"context"

	"k8s.io/component-base/cli"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func init() {
	parts["kube-scheduler"] = func() int {
		return cli.Run(scheduler.NewSchedulerCommand())
	}
	parts["kube-proxy"] = func() int {
		return cli.Run(proxy.NewProxyCommand())
	}
	parts["kubelet"] = func() int {
		return cli.Run(kubelet.NewKubeletCommand(context.Background()))
	}
}
