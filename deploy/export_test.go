package deploy

// Crowded has a deployment take itself for one to many more nodes.
func Crowded(d *Deployment) { d.installs += maxWithCode }
