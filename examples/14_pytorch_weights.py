"""The other half of 14_pytorch_weights.cpp: reads from_sluice.safetensors, writes from_torch.safetensors."""
import torch
from safetensors.torch import load_file, save_file


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 4, 40, dropout=0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(2))
        self.head = torch.nn.Linear(16, 50)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model, file = Model(), load_file("from_sluice.safetensors")
model.load_state_dict({k[len("model."):]: v for k, v in file.items() if k.startswith("model.")})
tokens = file["tokens"]
print("from_sluice.safetensors: logits differ by %.0e" % (model(tokens) - file["logits"]).abs().max().item())

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # it learns to repeat its input
for _ in range(50):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
with torch.no_grad():
    logits = model(tokens)
save_file({**{"model." + k: v for k, v in model.state_dict().items()}, "tokens": tokens, "logits": logits}, "from_torch.safetensors", metadata={"format": "pt"})
print("from_torch.safetensors: written at a loss of %.3f" % loss.item())
