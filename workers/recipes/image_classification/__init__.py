"""Image classification: a ResNet or a Vision Transformer gives each picture one label."""
