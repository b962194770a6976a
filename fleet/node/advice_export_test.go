package node

// AdviceTexts are the hints by their codes.
func AdviceTexts() map[string]string { return adviceTexts("python", "ENVIRONMENT", "SITE-PACKAGES") }
