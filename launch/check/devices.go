package check

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// checkDevices checks the number and the health of the GPUs.
func (r *run) checkDevices(context.Context) {
	live := r.liveMembers()
	counts := groupByValue(live, func(m *member) (string, bool) {
		return strconv.Itoa(len(m.facts.GPUs)), m.Host.Slots == 0 && !m.facts.GPUsHidden
	})
	for _, m := range live {
		m.countDevices(counts, len(live))
		m.checkHealth()
		m.checkDriver()
		m.checkMIG()
		m.checkMemLock()
		m.checkCMA()
	}
	compareRDMA(live)
}

// checkDriver compares the driver with the minimum for torch's CUDA. An older driver is sufficient if programs load
// libcuda from the package cuda-compat.
func (m *member) checkDriver() {
	t, cuda := m.run.opt.Tables, m.facts.TorchCUDA
	if t == nil || len(m.facts.GPUs) == 0 || cuda == "" || t.DriverSupports(m.facts.Driver, cuda) {
		return
	}
	text := fmt.Sprintf("driver %s is too old for CUDA %s of torch %s", m.facts.Driver, cuda, m.facts.Torch)
	major, _, _ := strings.Cut(cuda, ".")
	for _, line := range m.smiLines("libcuda") {
		has, err := strconv.Atoi(line)                                        // 12080: CUDA 12.8
		if needs, _ := strconv.Atoi(major); err == nil && has/1000 >= needs { //nolint:errcheck // 0 without a number
			m.addFinding(Devices, Warning, "", "%s; cuda-compat replaces it (libcuda of CUDA %d.%d), but only on data center GPUs",
				text, has/1000, has%1000/10)
			return
		}
	}
	m.addFinding(Devices, Error, "update the driver, or install a torch for an older CUDA", "%s", text)
}

// hasMIG reports whether a GPU is divided into instances.
func (m *member) hasMIG() bool {
	return slices.ContainsFunc(m.smiLines("mig"), func(line string) bool {
		c := splitColumns(line)
		return c[len(c)-1] == "enabled"
	})
}

// checkMIG warns of divided GPUs: a process sees one instance, and NCCL connects no instances of one GPU.
func (m *member) checkMIG() {
	if m.hasMIG() {
		m.addFinding(Devices, Warning, "for jobs of several processes, disable MIG: nvidia-smi -mig 0",
			"MIG divides GPUs: each process sees one instance, and NCCL cannot use two instances of one GPU")
	}
}

// checkCMA checks machines with unified memory: RDMA gets its buffers from the kernel's contiguous area.
func (m *member) checkCMA() {
	l := m.survey.Limits.OK
	unified := slices.ContainsFunc(m.smiLines("memory"), func(line string) bool {
		c := splitColumns(line)
		return strings.Contains(c[len(c)-1], "n/a") || strings.Contains(c[len(c)-1], "not supported")
	})
	if l != nil && len(l.RDMA) > 0 && l.CMA == 0 && unified {
		m.addFinding(Devices, Warning, "boot the kernel with an area, such as cma=1G",
			"the kernel reserves no contiguous memory (CmaTotal is 0), so RDMA cannot register buffers in unified memory")
	}
}

// compareRDMA finds the nodes whose RDMA devices differ from most others'.
func compareRDMA(live []*member) {
	devices := groupByValue(live, func(m *member) (string, bool) {
		if m.survey.Limits.OK == nil {
			return "", false
		}
		return strings.Join(m.survey.Limits.OK.RDMA, ", "), true
	})
	for _, v := range devices[min(1, len(devices)):] {
		for _, m := range v.members {
			level := Warning // other names matter only to NCCL_IB_HCA
			if strings.Count(v.value, ",") != strings.Count(devices[0].value, ",") || (v.value == "") != (devices[0].value == "") {
				level = Error
			}
			m.addFinding(Devices, level, "run ibv_devinfo on the nodes; set NCCL_IB_HCA to devices that all nodes have, by env: in the inventory",
				"RDMA devices: %s, but %s have %s; NCCL may hang",
				cmp.Or(v.value, "none"), devices[0].of(len(live)), cmp.Or(devices[0].value, "none"))
		}
	}
}

// checkMemLock checks that RDMA can lock memory. A job's limit may differ from this login's.
func (m *member) checkMemLock() {
	const enough = 1 << 40
	l := m.survey.Limits.OK
	if l == nil || len(l.RDMA) == 0 || l.MemLock < 0 || l.MemLock > enough {
		return
	}
	m.addFinding(Devices, Warning, "raise the limit: 'ulimit -l' must print unlimited in a job (LimitMEMLOCK=infinity for slurmd or sshd)",
		"locked memory is limited to %s, too little for RDMA (%s)", ui.Size(l.MemLock), strings.Join(l.RDMA, ", "))
}

// countDevices compares the number of GPUs with the inventory, or with most other
// nodes.
func (m *member) countDevices(counts []valued, of int) {
	has, visible := len(m.facts.GPUs), m.visibleGPUs()
	const try = "run nvidia-smi -L on the node, to see whether a GPU has fallen off the bus or is hidden from the user or container"
	switch {
	case m.facts.GPUsHidden:
		m.addFinding(Devices, Warning, "request them: --salloc=--gres=gpu:N",
			"GPUs not checked: Slurm hides them from jobs that request none")
	case m.Host.Slots > 0 && has < m.Host.Slots:
		m.addFinding(Devices, Error, try, "%s, but slots is %d in the inventory", countGPUs(has), m.Host.Slots)
	case m.Host.Slots > 0 && has > m.Host.Slots:
		m.addFinding(Devices, Warning, "change slots in the inventory, or gres of the Slurm job",
			"%s, but slots is only %d in the inventory", countGPUs(has), m.Host.Slots)
	case m.Host.Slots == 0 && len(counts) > 1 && strconv.Itoa(has) != counts[0].value:
		m.addFinding(Devices, Error, try, "%s, but %s have %s", countGPUs(has), counts[0].of(of), counts[0].value)
	}
	if visible >= 0 && has > 0 && visible < max(m.Host.Slots, 1) {
		m.addFinding(Devices, Error, "remove CUDA_VISIBLE_DEVICES from the profile on the node",
			"CUDA_VISIBLE_DEVICES leaves %s to jobs", countGPUs(visible))
	}
}

func countGPUs(n int) string {
	if n == 0 {
		return "no GPU"
	}
	return ui.Count(n, "GPU")
}

// visibleGPUs returns the number of GPUs in CUDA_VISIBLE_DEVICES, or -1 if it is not set.
func (m *member) visibleGPUs() int {
	if m.survey.Variables.OK == nil {
		return -1
	}
	value, set := (*m.survey.Variables.OK)["CUDA_VISIBLE_DEVICES"]
	if !set || value == "" { // checkVariables reports ""
		return -1
	}
	n := 0
	for word := range strings.SplitSeq(value, ",") {
		if strings.HasPrefix(strings.TrimSpace(word), "-") {
			break
		}
		n++
	}
	return n
}

// smiLines returns nvidia-smi's output for a query, or nil if it failed.
func (m *member) smiLines(question string) []string {
	p := m.survey.Devices[question].OK
	if p == nil || p.Status != 0 {
		return nil
	}
	return p.Lines
}

// splitColumns splits a line of nvidia-smi, in lower case.
func splitColumns(line string) []string {
	parts := strings.Split(strings.ToLower(line), ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// checkHealth checks the GPUs with nvidia-smi and the kernel's log.
func (m *member) checkHealth() {
	const admin = "drain the node, then reset or replace the GPU"
	if p, asked := m.survey.Devices["gpus"]; asked && (p.failureReason() != "" || p.OK != nil && p.OK.Status != 0) {
		said := p.failureReason()
		if p.OK != nil {
			said = fmt.Sprintf("exit status %d", p.OK.Status)
		}
		if p.OK != nil && len(p.OK.Lines) > 0 {
			said = p.OK.Lines[len(p.OK.Lines)-1]
		}
		m.addFinding(Devices, Error, "run nvidia-smi on the node; after a driver update, reboot it", "nvidia-smi: %s", said)
		return
	}
	for _, line := range m.smiLines("ecc") {
		c := splitColumns(line)
		if n, err := strconv.Atoi(c[len(c)-1]); err == nil && n > 0 {
			m.addFinding(Devices, Error, admin,
				"GPU %s: %s since the driver was loaded", c[0], ui.Count(n, "uncorrectable ECC error"))
		}
	}
	for _, line := range m.smiLines("retired") {
		if c := splitColumns(line); c[len(c)-1] == "yes" || isPositive(c[len(c)-1]) {
			m.addFinding(Devices, Error, "reset the GPU or reboot the node",
				"GPU %s: memory pages pending retirement", c[0])
		}
	}
	for _, line := range m.smiLines("remapped") {
		c := splitColumns(line)
		if len(c) < 3 {
			continue
		}
		if c[1] == "yes" || isPositive(c[1]) {
			m.addFinding(Devices, Error, "reset the GPU or reboot the node",
				"GPU %s: memory rows pending remapping", c[0])
		}
		if c[2] == "yes" || isPositive(c[2]) {
			m.addFinding(Devices, Error, admin, "GPU %s: memory row remapping failed", c[0])
		}
	}
	for _, line := range m.smiLines("fabric") {
		if c := splitColumns(line); slices.Contains([]string{"not started", "in progress"}, c[len(c)-1]) {
			m.addFinding(Devices, Error, "check that nvidia-fabricmanager is active and has the driver's version: systemctl status nvidia-fabricmanager",
				"GPU %s: NVLink switches not ready (%s), so CUDA fails with error 802", c[0], c[len(c)-1])
		}
	}
	for _, line := range m.smiLines("slowdown") {
		if c := splitColumns(line); c[len(c)-1] == "active" {
			m.addFinding(Devices, Error,
				"run nvidia-smi -q -d PERFORMANCE,TEMPERATURE; check cooling and power cables",
				"GPU %s: slowed down by the hardware", c[0])
		}
	}
	if busy := m.busyProcesses(); len(busy) > 0 {
		m.addFinding(Devices, Warning, "run nvidia-smi on the node; these processes take memory from a job",
			"GPUs in use by %s", nodeerr.Own(strings.Join(busy[:min(len(busy), 4)], ", ")))
	}
	m.checkXIDs()
}

func isPositive(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0
}

// busyProcesses are the processes that use GPUs.
func (m *member) busyProcesses() []string {
	var all []string
	for _, line := range m.smiLines("busy") {
		parts := strings.SplitN(line, ",", 3)
		if len(parts) < 3 {
			continue
		}
		who := fmt.Sprintf("pid %s (%s)", strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2]))
		if !slices.Contains(all, who) {
			all = append(all, who)
		}
	}
	return all
}

var xid = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)`)

// checkXIDs reports each XID error in the kernel's log once.
func (m *member) checkXIDs() {
	p := m.survey.Devices["xid"].OK
	if p == nil {
		return
	}
	if p.Status != 0 {
		m.addFinding(Devices, Warning, "add the user to the group adm or systemd-journal, or set sysctl kernel.dmesg_restrict=0",
			"cannot read the kernel log: XID errors of the GPUs were not checked")
		return
	}
	type trouble struct{ gpu, number string }
	times, last := map[trouble]int{}, map[trouble]string{}
	var order []trouble
	for _, line := range p.Lines {
		if found := xid.FindStringSubmatch(line); found != nil {
			t := trouble{found[1], found[2]}
			last[t] = strings.TrimSpace(line)
			if times[t]++; times[t] == 1 {
				order = append(order, t)
			}
		}
	}
	// A faulty program causes the first, and NVIDIA's XID catalog says of the second that nothing is to be done. All that
	// are not listed come from the GPU, its driver or its links.
	ofPrograms := []int{8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 68, 69, 94, 109}
	harmless := []int{37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141}
	for _, t := range order {
		number, _ := strconv.Atoi(t.number) //nolint:errcheck // digits
		level := Warning
		why, hint := "", "run sudo dmesg | grep Xid to find the program that most likely caused it"
		switch {
		case slices.Contains(harmless, number), number == 154 && strings.HasSuffix(last[t], "(None)"): // 154 names the new action
			why, hint = "; NVIDIA's XID catalog asks for no action", ""
		case !slices.Contains(ofPrograms, number):
			level = Error
			hint = "run sudo dmesg | grep Xid; NVIDIA's XID catalog explains the number; reboot the node, or reset the GPU and run sudo dmesg -C"
		}
		m.addFinding(Devices, level, hint, "GPU %s: XID %d, %s since boot%s", t.gpu, number, timesOf(times[t]), why)
	}
}

func timesOf(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
