package envdeploy

import "github.com/dsbuild/dsbuild/fleet/change"

// NewPlan decides the action on each node, as Deploy.Survey does.
func NewPlan(nodes []ProbeResult, opt PlanOptions) (Plan, error) {
	plan, err := planNodes(nodes, opt)
	if err == nil {
		plan.agree(nodes, opt.InUse)
	}
	return plan, err
}

// NewRollbackPlan decides which nodes undo a run, as Deploy.SurveyRollback does.
func NewRollbackPlan(nodes []ProbeResult, run string, policy change.InUse) (Plan, error) {
	plan, err := planRollback(nodes, run)
	if err == nil {
		plan.agree(nodes, policy)
	}
	return plan, err
}
