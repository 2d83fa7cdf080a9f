package semaphorev1

// FeatureRotateKey, in AgentHello.features, says that an agent knows the message RotateKey.
const FeatureRotateKey = "rotate-key"
