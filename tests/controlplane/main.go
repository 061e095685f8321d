// The parts of a Kubernetes control plane, and kubectl, in one binary.
//
// The part is chosen by the name under which the binary is called, or else by the first argument:
// `kube-apiserver --help` and `controlplane kube-apiserver --help` are the same.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// Each part runs until it ends and returns its exit code.
var parts = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver": func() int {
		return cli.Run(apiserver.NewAPIServerCommand())
	},
	"kube-controller-manager": func() int {
		return cli.Run(controllermanager.NewControllerManagerCommand())
	},
	"kubectl": func() int {
		// kubectl's own main does the same: errors are printed the way kubectl prints them.
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
}

func main() {
	os.Exit(run())
}

func run() int {
	if part, known := parts[filepath.Base(os.Args[0])]; known {
		return part()
	}
	if len(os.Args) > 1 {
		if part, known := parts[os.Args[1]]; known {
			os.Args = os.Args[1:]
			return part()
		}
	}
	fmt.Fprintf(os.Stderr, "usage: %s PART [ARGUMENT...]\nPART is one of: %s\n", os.Args[0], strings.Join(names(), ", "))
	return 2
}

func names() []string {
	known := make([]string, 0, len(parts))
	for name := range parts {
		known = append(known, name)
	}
	sort.Strings(known)
	return known
}
