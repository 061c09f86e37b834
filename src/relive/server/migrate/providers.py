"""Where providers answer in the form that the gateway speaks, and which variable holds their key by custom.

The names are those that LiteLLM and TensorZero use, lower case. A provider that is not here either speaks a form of its
own (Bedrock, Vertex, Azure's deployments) or has to be named by its address.
"""

from typing import NamedTuple


class Provider(NamedTuple):
    """A provider.

    Attributes:
        url: Base address of its API; ``None``: each user's own.
        variable: The environment variable that holds its key; ``None``: none is asked for.
        api: The form it speaks.
    """

    url: str | None
    variable: str | None
    api: str = "openai"


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "anthropic"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "google_ai_studio_gemini": Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GOOGLE_AI_STUDIO_API_KEY"
    ),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "hyperbolic": Provider("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Provider("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "hosted_vllm": Provider(None, None),
    "llamafile": Provider(None, None),
    "lm_studio": Provider("http://127.0.0.1:1234/v1", None),
    "ollama": Provider("http://127.0.0.1:11434/v1", None),
    "ollama_chat": Provider("http://127.0.0.1:11434/v1", None),
    "openai_like": Provider(None, None),
    "sglang": Provider(None, None),
    "tgi": Provider(None, None),
    "vllm": Provider(None, None),
}
